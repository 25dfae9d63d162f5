"""The ranks of a job that mpirun starts, on several hosts or on one.

Keepers come, say who they are, get their orders together, and are heard of each second from then
on.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping

from . import marks, siblings, version
from .frames import Channel, Listener
from .greeting import Hello, Order, Summons
from .guard import Guard
from .hosts import Host
from .interfaces import common_to_hosts, described
from .lookout import Lookout
from .mpirun import KILL_S, Mpirun, command_line, require, variables
from .options import Options
from .rank import check_command
from .reach import why_missing
from .reception import Reception, own_addresses
from .refusal import Refusal
from .remote import RemoteRank
from .standing import Standing, Wiring
from .variables import shared_variables, travels

_BEAT_S = 1.0
_TCP_CHOICES = ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude")
_NEVER_TCP = "127.0.0.1/8,sppp"  # what Open MPI leaves out by itself
_LOOK_S = 0.25  # between two looks at who has been silent for too long
_MPIRUN_S = 1.0  # that mpirun has to end after the last keeper, and again after SIGTERM
_LEAST_S = 0.1  # the same in a hurry


class RemoteCrew:
    """All ranks of a job under mpirun."""

    def __init__(self, options: Options, environment: Mapping[str, str]) -> None:
        check_command(options.command)
        self._options = options
        self._environment = dict(environment)
        self._mpirun_path, self._major = require(environment)
        hosts = options.hosts or [Host(socket.gethostname(), options.np)]
        self._local_sizes = {host.name: host.slots for host in hosts}
        places = [(host.name, local) for host in hosts for local in range(host.slots)]
        self._ranks = [RemoteRank(rank, *place) for rank, place in enumerate(places)]
        self.ranks: list[Standing] = list(self._ranks)
        self.started = False
        self._version = version()
        self._finishing = threading.Event()
        self._mpirun: Mpirun | None = None
        self._reception: Reception | None = None
        self._lookout: Lookout | None = None
        self._next_look = 0.0
        self._listener = Listener(_LOOK_S, time.monotonic())

    # --- starting ---------------------------------------------------------------------------------

    def dry_run(self) -> str:
        added = variables(self._major, self._options, self._environment)
        words = [f"{name}={shlex.quote(value)}" for name, value in sorted(added.items())]
        ranks = [f"{name}={shlex.quote(value)}" for name, value in sorted(self._added().items())]
        return "\n".join(
            [
                " ".join(["env", *words, shlex.join(self._command_line())]),
                " ".join(["# each keeper: env", *ranks, shlex.join(self._options.command)]),
            ]
        )

    def _command_line(self) -> list[str]:
        return command_line(self._mpirun_path, self._major, self._options, self._environment)

    def _added(self) -> dict[str, str]:
        added = shared_variables(self._options, self._environment)
        if self._options.use_mpi and "HORON_LOCAL_SIZE" not in self._environment:
            added["HORON_CONTROLLER"] = "mpi"
        return added

    def start(self, guard: Guard, wiring: Wiring) -> None:
        self._wiring = wiring
        secret = os.urandom(32)
        addresses = own_addresses(self._options.hosts, self._options.interfaces)
        self._reception = Reception(addresses, secret, wiring.selector, self._on_hello, wiring.say)
        summons = Summons(
            secret,
            socket.gethostname(),
            self._reception.addresses,
            self._options.start_s,
            self._options.silence_s,
        )
        self._deadline = time.monotonic() + self._options.start_s
        wiring.say(f"keepers report to {' '.join(addresses)}; {shlex.join(self._command_line())}")
        mca = variables(self._major, self._options, self._environment)
        self._mpirun = Mpirun(
            self._command_line(), {**self._environment, **mca, **summons.variables()}
        )
        pid = self._mpirun.process.pid
        guard.add(pid, KILL_S, siblings.session_folder(pid))
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    def _beat(self) -> None:
        """A thread of its own: the loop may have to wait for whoever reads its output."""
        while not self._finishing.wait(_BEAT_S):
            for rank in self._ranks:
                rank.beat()

    def _on_hello(self, channel: Channel, hello: Hello) -> None:
        if self._finishing.is_set() or hello.rank >= len(self._ranks):
            channel.close()
            return
        rank = self._ranks[hello.rank]
        if rank.hello is not None:
            channel.close()
            return
        rank.connect(channel, hello, self._wiring)
        self._wiring.say(
            f"rank {rank.rank}: keeper on {hello.host}, local rank {hello.local_rank}, "
            f"pid {hello.pid}"
        )
        self._check(rank, hello)
        if all(rank.hello is not None for rank in self._ranks):
            self._begin()

    def _check(self, rank: RemoteRank, hello: Hello) -> None:
        if hello.version != self._version:
            raise Refusal(
                f"host {rank.host} has Horon {hello.version}, this one has {self._version}: "
                "install the same version on all hosts"
            )
        if hello.local_rank != rank.local_rank:
            raise Refusal(
                f"mpirun started rank {rank.rank} on {hello.host} as local rank "
                f"{hello.local_rank}, not {rank.local_rank} on {rank.host}: do several names "
                "mean one host, or do OMPI_MCA_, PRTE_MCA_ variables change the mapping?"
            )
        wanted = self._options.interfaces
        if wanted and not any(hello.interfaces.get(name) for name in wanted):
            raise Refusal(
                f"host {rank.host} has no interface {' or '.join(wanted)} with an address; "
                f"it has {described(hello.interfaces)}"
            )

    def _check_interfaces(self) -> None:
        """A name need not be on every host, but on one."""
        found = {rank.host: rank.hello.interfaces for rank in self._ranks}
        for name in self._options.interfaces:
            if not any(by_name.get(name) for by_name in found.values()):
                hosts = (f"{host} has {described(by_name)}" for host, by_name in found.items())
                raise Refusal(
                    f"no host has an interface {name} with an address; {', '.join(hosts)}"
                )

    def _begin(self) -> None:
        """All are there and fit each other."""
        self._check_interfaces()
        self._reception.close()
        self.started = True
        try:
            self._lookout = Lookout(self._wiring.selector, self._ranks)
        except OSError as error:
            self._wiring.say(f"horonrun top will not find this job: {error.strerror}")
        passed = {name: value for name, value in self._environment.items() if travels(name)}
        left_out = self._left_out()
        mark = marks.of_job(self._environment)
        for rank in self._ranks:
            rank.order(
                Order(
                    self._options.grace_s,
                    self._local_sizes[rank.host],
                    rank.rank == 0 and not sys.stdin.isatty(),
                    self._options.interfaces,
                    self._options.command,
                    {
                        **passed,
                        **self._added(),
                        **left_out[rank.host],
                        marks.VARIABLE: marks.of_rank(mark, rank.rank),
                    },
                ),
                self._options.task,
            )

    def _left_out(self) -> dict[str, dict[str, str]]:
        """By the name that we know a host by (several may call themselves alike): the variable that
        keeps MPI from interfaces that lead to no other host. It would take two of one network for
        neighbors, and wait for ever for one that is itself."""
        interfaces = {rank.host: rank.hello.interfaces for rank in self._ranks}
        found: dict[str, dict[str, str]] = {host: {} for host in interfaces}
        if self._options.interfaces or any(name in self._environment for name in _TCP_CHOICES):
            return found
        for host in interfaces:
            if names := common_to_hosts(host, interfaces):
                found[host] = {_TCP_CHOICES[1]: ",".join([_NEVER_TCP, *names])}
                self._wiring.say(f"host {host}: MPI leaves out {', '.join(names)}, with an address "
                                 "that other hosts have too")
        return found

    # --- while it runs ----------------------------------------------------------------------------

    def due(self) -> float | None:
        return self._next_look

    def turn(self, now: float) -> None:
        if late := self._listener.late(now):
            for rank in self._ranks:
                rank.excuse(now, late)
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        if not self.started:
            self._reception.turn(now)
            self._look_at_start(now)
        for rank in self._ranks:
            if rank.judge_silence(now, self._options.silence_s):
                self._mpirun.freeze()
        if self._lookout is not None:
            self._lookout.turn(now)

    def _look_at_start(self, now: float) -> None:
        code = self._mpirun.process.poll()
        if code is None and now < self._deadline:
            return
        missing = [rank for rank in self._ranks if rank.hello is None]
        raise why_missing(
            missing,
            self._options,
            self._environment,
            self._mpirun.last_lines,
            code,
            self._reception.addresses,
        )

    # --- ending -----------------------------------------------------------------------------------

    def finish(self, recorders_wanted: bool) -> None:
        self._finishing.set()
        for rank in self._ranks:
            rank.finish(recorders_wanted)

    def overhear(self, now: float) -> tuple[list[int], float | None]:
        return [], None  # it comes between the output

    @property
    def mpi_errors(self) -> list[str]:
        return self._mpirun.errors if self._mpirun is not None else []

    def clear(self, until: float) -> None:
        if self._lookout is not None:
            self._lookout.close()
        for rank in self._ranks:
            rank.disconnect()
        if self._reception is not None:
            self._reception.close()
        if self._mpirun is None:
            return
        # Without a keeper on each host it does not end by itself.
        whole = all(rank.ended_at is not None and not rank.lost for rank in self._ranks)
        half = max((until - time.monotonic()) / 2, _LEAST_S)
        if not self._mpirun_ends_within(min(_MPIRUN_S, half) if whole else 0.0):
            self._mpirun.signal(signal.SIGTERM)
            self._mpirun.signal(signal.SIGCONT)
            left = max(until - time.monotonic(), _LEAST_S)
            if not self._mpirun_ends_within(min(_MPIRUN_S, left)):
                self._mpirun.kill()

    def _mpirun_ends_within(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while self._mpirun.process.poll() is None:
            if time.monotonic() >= end:
                return False
            for key, _ in self._wiring.selector.select(end - time.monotonic()):
                key.data()  # SIGCHLD
        return True
