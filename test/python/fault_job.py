"""One job of the fault matrix: started, struck, awaited, and looked for afterwards."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import own_world
from fault_cells import HOST_TIMEOUT_S, NP, SILENCE_S, Cell, Outcome
from fault_judge import Ended, judge

ROOT = Path(__file__).resolve().parents[2]
HANG_S = 120.0  # for a whole job; what is promised counts from the fault (Cell.ends_s)
# Variables of a phase. CELL_COUNTS: what a node's first rank must have counted before the fault's
# step; else it would strike on another way than it says.
_LOCKED = {"CELL_STEADY": "1", "CELL_COUNT": str(4 * 65536), "CELL_COUNTS": "schedule.tensors"}
_CARGO = {"CELL_STEADY": "1", "CELL_COUNT": "700", "CELL_COUNTS": "schedule.carried"}
_ADASUM = {"CELL_OP": "adasum"}
_ALLTOALL = {"CELL_OP": "alltoall"}
_BROADCAST = {"CELL_OP": "broadcast:root=0"}
_ALLGATHER = {"CELL_OP": "allgather"}
_REDUCE_SCATTER = {"CELL_OP": "reduce_scatter"}
_FAR = {"HORON_SHM_FAR_NS": "0"}
_VARIABLES = {
    "lent": {"CELL_LENDS": "1"},
    "locked": _LOCKED,
    "lent_locked": {"CELL_LENDS": "1"} | _LOCKED,
    "leaving": {"CELL_LEAVES": "1"} | _LOCKED,
    "cargo_in": _CARGO,
    "cargo_add": _CARGO,
    "cargo_out": _CARGO,
    "in_place": {"CELL_SHARED": "1"},
    "in_place_locked": {"CELL_SHARED": "1"} | _LOCKED,
    "adasum": _ADASUM,
    "adasum_locked": _ADASUM | _LOCKED,
    "messages": {"CELL_OP": "adasum:algo=halving"},
    # Where each rank is a node of its own: otherwise ranks add slices themselves.
    "mpi_adds": {"HORON_DETERMINISTIC": "0", "HORON_LOCAL_SIZE": "1",
                 "CELL_COUNTS": "mpi.collectives"},
    "broadcast": _BROADCAST,
    "alltoall": _ALLTOALL,
    "broadcast_locked": _BROADCAST | _LOCKED,
    "alltoall_locked": _ALLTOALL | _LOCKED,
    "swap_locked": _ALLTOALL | _LOCKED | {"CELL_COUNT": str(4 << 20)},
    "allgather": _ALLGATHER,
    "allgather_locked": _ALLGATHER | _LOCKED,
    "rings": _ALLGATHER | {"HORON_CMA": "0"},
    "reduce_scatter": _REDUCE_SCATTER,
    "reduce_scatter_locked": _REDUCE_SCATTER | _LOCKED,
    "topk_locked": {"CELL_OP": "topk:ratio=0.1"} | _LOCKED,
    "far_adasum": _ADASUM | _FAR,
    "far_broadcast": _BROADCAST | _FAR,
}
_REPORTS = "reports"  # in a job's folder: what the flight recorders held


def run(program: str, cell: Cell) -> Outcome:
    mark = uuid.uuid4().hex
    before = _files()
    with tempfile.TemporaryDirectory(prefix="horon-cell-") as folder:
        process = _start(program, cell, mark, folder)
        try:
            outcome, said = _see(process, cell, mark, folder)
        finally:
            _end_all(mark)
            _mend(cell)
    left = sorted(_files() - before)
    if left:
        outcome.wrong.append(f"files left behind: {', '.join(left)}")
    if outcome.wrong:
        outcome.wrong.append(said)
    return outcome


def _start(program: str, cell: Cell, mark: str, folder: str) -> subprocess.Popen:
    where = ["-np", str(NP)]
    if cell.hosts > 1:
        hosts = ",".join(f"h{i + 1}:{NP // cell.hosts}" for i in range(cell.hosts))
        where = ["-H", hosts, "--host-timeout", str(HOST_TIMEOUT_S)]
    options = ["--verbose", "--no-prefix", "--grace-period", str(cell.grace_s)]
    return subprocess.Popen(
        [sys.executable, "-m", "launcher", *where, *options, program],
        env=_environment(cell, mark, folder),
        cwd=ROOT,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _environment(cell: Cell, mark: str, folder: str) -> dict[str, str]:
    passed = ("OMPI_ALLOW_", "OMPI_MCA_")  # those of test/support/world.sh
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HORON_", "OMPI_")) or name.startswith(passed)
    }
    added = {
        "PYTHONPATH": str(ROOT),
        "CELL_MARK": mark,
        "CELL_NOTES": folder,
        "CELL_VICTIMS": ",".join(map(str, cell.victims)),
        "HORON_STALL_SILENCE_SECONDS": str(SILENCE_S),
        "HORON_POSTMORTEM_DIR": os.path.join(folder, _REPORTS),
    }
    added |= _VARIABLES.get(cell.phase, {})
    if not cell.lends:
        added["HORON_LEND"] = "0"
    if cell.raised_at is not None:
        ranks = [f".{victim}" for victim in cell.victims]
        added |= {"CELL_RAISE_AT": str(cell.raised_at)} | _held(cell, folder, ranks)
    elif cell.fault == "raise":
        added["CELL_RAISE"] = cell.phase
    elif cell.strikes_itself:
        added["HORON_FAULT"] = cell.plan.format(cell.fault)
        if cell.at_once:
            meeting = os.path.join(folder, "meeting")
            os.mkfifo(meeting)
            added["HORON_FAULT"] += f":{meeting}"
    else:
        added["CELL_VICTIMS"] = str(cell.victims[0])  # the one that stands still meanwhile
        added |= _held(cell, folder, [""])
    return {**kept, **added}


def _held(cell: Cell, folder: str, endings: list[str]) -> dict[str, str]:
    """Variables with which a rank stands still in the phase until somebody lets it go."""
    held = os.path.join(folder, "held")
    for ending in endings:
        os.mkfifo(held + ending)
        os.mkfifo(held + ending + ".go")
    return {"CELL_HELD": held, "HORON_FAULT": cell.plan.format(f"hold={held}")}


def _see(process: subprocess.Popen, cell: Cell, mark: str, folder: str) -> tuple[Outcome, str]:
    """The job to its end, on all hosts; and what was said, for whoever has to find out why."""
    struck = None if cell.strikes_itself else _strike(process, cell, folder)
    with contextlib.ExitStack() as until_the_end:
        if struck is not None:
            until_the_end.callback(os.close, _let_go(folder))
        ended, output, errors, late = _end_of(process, mark)
        left = _left_behind(cell, mark)  # who is cut off may speak later than horonrun ends
    notes = "".join(path.read_text() for path in sorted(Path(folder).glob("rank-*")))
    reports = "".join(path.read_text() for path in Path(folder, _REPORTS).glob("*/report.txt"))
    said = f"--- notes\n{notes}--- output\n{output}--- errors\n{errors}--- recorders\n{reports}"
    outcome = judge(cell, Ended(notes, errors, process.returncode, struck, ended))
    if late:
        outcome.wrong.insert(0, late)
    if left:
        outcome.wrong.append(f"left behind: {', '.join(left)}")
    return outcome, said


def _end_of(process: subprocess.Popen, mark: str) -> tuple[float, str, str, str]:
    """When horonrun ended, its output and errors, and what is wrong if that took too long."""
    begun = time.monotonic()
    late = ""
    try:
        output, errors = process.communicate(timeout=HANG_S)
    except subprocess.TimeoutExpired:
        late = f"not done after {time.monotonic() - begun:.0f} s; there: {_marked(mark)}"
        _end_all(mark)
        process.kill()
        output, errors = process.communicate()
    return time.monotonic(), output, errors, late


def _strike(process: subprocess.Popen, cell: Cell, folder: str) -> float | None:
    """Kills horonrun or cuts links while a rank stands in the phase; when that was done."""
    held = os.path.join(folder, "held")
    if not _stands(process, held):
        return None
    if cell.fault == "cut":
        _links(cell, "down")
    else:
        process.kill()
    return time.monotonic()


def _let_go(folder: str) -> int:
    """Lets the rank that stands go on, also one that is on its way from the first pipe to the
    second: the descriptor stays open until the job has ended."""
    return os.open(os.path.join(folder, "held.go"), os.O_RDWR)


def _stands(process: subprocess.Popen, held: str) -> bool:
    """Waits until the rank has opened and closed its pipe; false when the job ends before that."""
    pipe, ended = os.open(held, os.O_RDONLY | os.O_NONBLOCK), os.pidfd_open(process.pid)
    try:
        ready, _, _ = select.select([pipe, ended], [], [], HANG_S)
        return pipe in ready
    finally:
        os.close(pipe)
        os.close(ended)


def _links(cell: Cell, state: str) -> None:
    for host in sorted({cell.host_of(victim) for victim in cell.victims}):
        command = ["on", f"h{host}", "ip", "link", "set", "eth0", state]
        subprocess.run(command, check=True)


def _mend(cell: Cell) -> None:
    if cell.fault == "cut":
        _links(cell, "up")


# --- what is left ---------------------------------------------------------------------------------


def _marked(mark: str) -> dict[int, str]:
    """Command lines of the processes on all hosts whose environment holds the mark."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.encode() in Path(f"/proc/{entry}/environ").read_bytes():
                line = Path(f"/proc/{entry}/cmdline").read_bytes()
                found[int(entry)] = line.replace(b"\0", b" ").decode(errors="replace")[:80]
        except OSError:
            continue
    return found


def _left_behind(cell: Cell, mark: str) -> list[str]:
    limit = time.monotonic() + cell.gone_s
    while (processes := _marked(mark)) and time.monotonic() < limit:
        time.sleep(0.01)  # watching others' processes: there is nothing to wait on
    return [f"process {pid} ({line})" for pid, line in processes.items()]


def _files() -> set[str]:
    """Files that a job may leave: in a world of its own all are."""
    shared = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")}
    if not own_world.inside():
        return {name for name in shared if "horon" in name}
    folder = os.environ["TMPDIR"]
    return shared | {os.path.join(folder, name) for name in os.listdir(folder)}


def _end_all(mark: str) -> None:
    for pid in _marked(mark):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
