"""Why a keeper did not report: looked into when it is too late, so that a start costs nothing."""

from __future__ import annotations

import concurrent.futures
import re
import shlex
import socket
import subprocess
from collections.abc import Mapping

from .hosts import is_this_machine
from .mpirun import remote_shell
from .options import Options
from .refusal import Refusal
from .remote import RemoteRank

_PROBE_S = 5.0


def _probe(name: str, agent: list[str]) -> str:
    """What the remote shell says about a host; empty when it gets there."""
    try:
        done = subprocess.run(
            [*agent, name, "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_PROBE_S:g} s"
    except OSError as error:
        return f"{agent[0]}: {error.strerror}"
    lines = done.stderr.strip().splitlines()
    return "" if done.returncode == 0 else lines[-1] if lines else f"exit code {done.returncode}"


def why_missing(
    missing: list[RemoteRank],
    options: Options,
    environment: Mapping[str, str],
    lines: list[str],
    code: int | None,
    addresses: list[tuple[str, int]],
) -> Refusal:
    """For a job that did not start: names a host that nobody reaches, or says what mpirun said."""
    agent = remote_shell(options, environment)
    names = [
        name for name in dict.fromkeys(rank.host for rank in missing) if not is_this_machine(name)
    ]
    if "SLURM_JOB_ID" not in environment or options.rsh_agent:
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            answers = list(pool.map(lambda name: _probe(name, agent), names))
        for name, answer in zip(names, answers, strict=True):
            if answer:
                return Refusal(
                    f"host {name} cannot be reached: '{shlex.join([*agent, name])}' says: {answer}"
                )
    where = " or ".join(f"{address} port {port}" for address, port in addresses)
    if code is None:
        return Refusal(
            f"host {missing[0].host} did not answer within {options.start_s:g} s "
            f"(--start-timeout): nothing from there reached {where}; look at routes and firewalls, "
            "or choose --network-interfaces",
            details=lines if options.verbose else [],
        )
    return _what_mpirun_said(lines, code, options)


def _what_mpirun_said(lines: list[str], code: int, options: Options) -> Refusal:
    """It gives up by itself when a daemon ends early."""
    hosts = [match[1] for line in lines if (match := re.match(r"\s*Remote host:\s+(\S+)", line))]
    if hosts:
        return Refusal(
            f"host {hosts[0]}: the MPI daemon (prted) started there could not report to mpirun on "
            f"{socket.gethostname()}; look at routes and firewalls, or choose --network-interfaces",
            details=lines if options.verbose else [],
        )
    sentence = f"mpirun ended with code {code} before all ranks had started"
    return Refusal(sentence + ("; it said:" if lines else ""), details=lines)
