"""What happens to a job in a world of hosts, seen from h1: run as `world_scenes.py SCENE`.

Each scene starts horonrun, does something to it, and prints what it saw as one line of JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from living import processes

LIMIT_S = 40
MPIRUN = r"^\S*(mpirun|prterun) "
PRTED = r"^\S*prted "
KEEPER = r"launcher\.keeper"
IN_CREATE = 0x100  # of inotify
TMP = Path(os.environ["TMPDIR"])
# Prints "up", and has children that only horonrun can know of, one in a session of its own.
SLEEPER = "sleep 1000 & setsid sleep 1000 & echo up; wait"
# A job that computes until it is told that something is lost.
TRAINER = """
import os, sys, time, torch, horon.torch as hvd
hvd.init()
hvd.allreduce(torch.ones(10), name="first")
print("up", flush=True)
try:
    for step in range(100000):
        hvd.allreduce(torch.ones(10), name="x")
        time.sleep(0.01)
except hvd.HorovodInternalError as error:
    heard = time.monotonic()
    with open(f"{os.environ['SCENE_NOTES']}/rank-{hvd.rank()}", "w") as file:
        file.write(f"{heard} {error}")
    raise
"""
# Does nothing but collectives.
REDUCER = """
import torch, horon.torch as hvd
hvd.init()
tensor = torch.zeros(1 << 20)
hvd.allreduce(tensor, name="first")
print("up", flush=True)
while True:
    hvd.allreduce(tensor, name="x")
"""

# Its last rank never has the tensor that the others wait for.
HUNG = """
import signal, torch, horon.torch as hvd
hvd.init()
hvd.allreduce(torch.ones(10), name="first")
print("up", flush=True)
hvd.allreduce(torch.ones(10), name="late") if hvd.rank() < hvd.size() - 1 else signal.pause()
"""


def links_of(pid: int) -> Iterator[str]:
    """What a process has open."""
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            yield os.readlink(path)


class Job:
    """A horonrun that has been started, with its output so far."""

    def __init__(self, *arguments: str, ups: int) -> None:
        self.before = set(processes())
        self.process = subprocess.Popen(
            [sys.executable, "-m", "horon.launcher", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "SCENE_NOTES": str(TMP)},
        )
        self.output = ""
        while ups and (line := self.process.stdout.readline()):
            self.output += line
            ups -= line.endswith("] up\n")
        self.since = time.monotonic()

    def started(self) -> dict[int, str]:
        return {pid: line for pid, line in processes().items() if pid not in self.before}

    def find(self, what: str) -> int:
        found = [pid for pid, line in self.started().items() if re.search(what, line)]
        if not found:
            raise SystemExit(f"no process '{what}' in {self.started()}")
        return max(found)

    def keeper_on_h2(self) -> int:
        """The one child of the only prted; the keeper's guard looks the same."""
        prted = str(self.find(PRTED))
        return next(
            pid
            for pid, line in self.started().items()
            if re.search(KEEPER, line)
            and Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1] == prted
        )

    def end(self) -> dict:
        """Waits for horonrun, then for everything that it started anywhere."""
        rest, _ = self.process.communicate(timeout=LIMIT_S)
        seen = {"code": self.process.returncode, "seconds": time.monotonic() - self.since}
        while (left := self.started()) and time.monotonic() < self.since + LIMIT_S:
            time.sleep(0.05)  # nothing tells when a foreign process ends
        notes = {path.name: path.read_text() for path in TMP.glob("rank-*")}
        return {
            **seen,
            "gone_after": time.monotonic() - self.since,
            "left": list(left.values()),
            "files": sorted(p.name for p in TMP.iterdir() if not p.name.startswith("rank-")),
            "output": self.output + rest,
            "notes": notes,
        }


def sleepers(*options: str) -> Job:
    return Job("-H", "h1:2,h2:1", *options, "sh", "-c", SLEEPER, ups=3)


def killed_launcher() -> dict:
    job = sleepers("--grace-period", "2")
    job.process.kill()
    return job.end()


def interrupt(job: Job) -> dict:
    job.since = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    return job.end()


def interrupted() -> dict:
    return interrupt(sleepers())


def interrupted_deaf() -> dict:
    """Ranks that ignore what they can."""
    body = "trap '' INT TERM; echo up; while :; do sleep 1; done"
    return interrupt(Job("-H", "h1:2,h2:1", "sh", "-c", body, ups=3))


def interrupted_in_a_collective() -> dict:
    return interrupt(Job("-H", "h1:2,h2:1", "python", "-c", REDUCER, ups=3))


def interrupted_with_a_lost_host() -> dict:
    job = sleepers("--host-timeout", "4", "--grace-period", "1")
    subprocess.run(["on", "h2", "ip", "link", "set", "eth0", "down"], check=True)
    return interrupt(job)


def interrupted_with_a_stopped_keeper() -> dict:
    job = sleepers("--host-timeout", "12")
    os.kill(job.keeper_on_h2(), signal.SIGSTOP)
    return interrupt(job)  # the MPI daemon of its host continues and ends it


def interrupted_deaf_and_loud() -> dict:
    """Nobody has read what they write for a while."""
    body = "trap '' INT TERM; echo up; sleep 1; exec yes"
    job = Job("-H", "h1:2,h2:1", "sh", "-c", body, ups=3)
    time.sleep(3)
    return {**interrupt(job), "output": ""}


def interrupted_while_starting() -> dict:
    subprocess.run(["on", "h2", "ip", "link", "set", "eth0", "down"], check=True)
    job = Job("--verbose", "-H", "h1:1,h2:1", "true", ups=0)
    while "keepers report to" not in job.output:
        job.output += job.process.stdout.readline()
    job.process.send_signal(signal.SIGTERM)
    job.since = time.monotonic()
    return job.end()


def well_ended() -> dict:
    """Each rank ends well and leaves one behind that holds its output."""
    note = '"$TMPDIR/rank-$OMPI_COMM_WORLD_RANK"'
    return Job("-H", "h1:2,h2:1", "sh", "-c", f"""
        setsid sh -c 'echo $$ > {note}; exec sleep 1000' &
        while [ ! -s {note} ]; do sleep 0.01; done
        echo up""", ups=3).end()


def killed_keeper() -> dict:
    job = sleepers("--grace-period", "1")
    os.kill(job.keeper_on_h2(), signal.SIGKILL)
    return job.end()


def killed_daemon() -> dict:
    job = sleepers("--grace-period", "1")
    os.kill(job.find(PRTED), signal.SIGKILL)
    return job.end()


def killed_mpirun() -> dict:
    job = sleepers("--grace-period", "1")
    os.kill(job.find(MPIRUN), signal.SIGKILL)
    return job.end()


def stopped_keeper() -> dict:
    job = sleepers("--grace-period", "1", "--host-timeout", "1.5")
    os.kill(job.keeper_on_h2(), signal.SIGSTOP)
    return job.end()


def cut_link() -> dict:
    job = Job("-H", "h1:2,h2:2", "--grace-period", "8", "python", "-c", TRAINER, ups=4)
    subprocess.run(["on", "h2", "ip", "link", "set", "eth0", "down"], check=True)
    job.since = time.monotonic()
    seen = job.end()
    heard = {rank: float(note.split()[0]) - job.since for rank, note in seen["notes"].items()}
    return {**seen, "heard_after": heard}


def same_bridges() -> dict:
    """Each host has a bridge for containers, with the address that it has everywhere."""
    for host in ("h1", "h2"):
        for words in ("link add docker0 type bridge", "addr add 172.17.0.1/16 dev docker0",
                      "link set docker0 up"):
            subprocess.run(["on", host, "ip", *words.split()], check=True)
    code = "import torch, horon.torch as h; h.init(); print(h.allreduce(torch.ones(1 << 20)).sum())"
    return Job("--verbose", "-H", "h1:1,h2:1", "python", "-c", code, ups=0).end()


def shared_memory_files() -> dict:
    """What a job makes in /dev/shm, although it is gone soon."""
    libc = ctypes.CDLL(None)
    notices = libc.inotify_init1(os.O_NONBLOCK)
    if libc.inotify_add_watch(notices, b"/dev/shm", IN_CREATE) < 0:
        raise SystemExit("no inotify")
    seen = Job("-H", "h1:2,h2:2", "python", "-c", "import horon; horon.init()", ups=0).end()
    text, made = os.read(notices, 1 << 16), []
    while text:
        (length,) = struct.unpack_from("12xI", text)
        made.append(text[16 : 16 + length].rstrip(b"\0").decode())
        text = text[16 + length :]
    return {**seen, "made": made}


def secret() -> dict:
    """Who can see it: not ps, and not the ranks."""
    job = sleepers()
    environment = Path(f"/proc/{job.find(MPIRUN)}/environ").read_bytes()
    key = re.search(rb"HORON_KEEPER_SECRET=(\w+)", environment)[1].decode()
    shown = [line for line in processes().values() if key in line]
    rank = Path(f"/proc/{job.find('^sleep 1000')}/environ").read_bytes()
    job.process.send_signal(signal.SIGINT)
    return {
        **job.end(),
        "shown": shown,
        "bytes": len(key) // 2,
        "in_rank": b"HORON_KEEPER" in rank or key.encode() in rank,
    }


def listeners() -> dict:
    """The addresses that horonrun listens on while it waits for a host that does not come."""
    subprocess.run(["on", "h2", "ip", "link", "set", "eth0", "down"], check=True)
    job = Job("--verbose", "-H", "h1:1,h2:1", "true", ups=0)
    while "keepers report to" not in job.output:
        job.output += job.process.stdout.readline()
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    own = set(links_of(job.process.pid))
    seen = {row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own}
    job.process.send_signal(signal.SIGTERM)
    return {
        **job.end(),
        "listening": sorted(".".join(str(b) for b in bytes.fromhex(a)[::-1]) for a in seen),
    }


def top() -> dict:
    """What it shows on both hosts of a job that hangs, and when a keeper stands."""
    job = Job("-H", "h1:2,h2:2", "python", "-c", HUNG, ups=4)
    look = [sys.executable, "-m", "horon.launcher", "top", "--once"]

    def shown(*command: str) -> str:
        return subprocess.run([*command, *look], capture_output=True, text=True, timeout=LIMIT_S,
                              check=False).stdout

    here = ""
    while here.count("waits for 'allreduce.late'") < 3 and time.monotonic() < job.since + LIMIT_S:
        here = shown()
    there = shown("on", "h2")
    keeper = job.keeper_on_h2()
    os.kill(keeper, signal.SIGSTOP)
    since = time.monotonic()
    stopped = shown()
    took = time.monotonic() - since
    os.kill(keeper, signal.SIGCONT)
    again = shown()
    return {"here": here, "there": there, "stopped": stopped, "took": took, "again": again,
            "launcher": job.process.pid, **interrupt(job), "after": shown()}


print(json.dumps(globals()[sys.argv[1]]()))
