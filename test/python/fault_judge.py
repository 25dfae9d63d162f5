"""Whether a cell of the fault matrix ended as it must."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fault_cells import HOST_TIMEOUT_S, NP, Cell, Outcome

_NAMES = {
    "kill": "was killed by signal 9",
    "segv": "was killed by signal 11",
    "exit0": "exited with code 0 without",
    "exit7": "exited with code 7",
    "raise": "raised ValueError: bad batch",
    "stop": "has not answered for",
}
_FAULT_AT = r"^horon: fault at ([\d.]+) in process (\d+)$"
_CODES = {"kill": 137, "segv": 139, "exit0": 1, "exit7": 7, "raise": 1, "cut": 1}


@dataclass(frozen=True)
class Ended:
    """What is known of a job that has ended."""

    notes: str  # of all ranks, see fault_cell.cc
    errors: str  # horonrun's stderr
    code: int
    struck: float | None  # when somebody outside struck
    at: float  # when horonrun ended, on the same clock


def judge(cell: Cell, ended: Ended) -> Outcome:
    outcome = Outcome()
    if cell.strikes_itself:
        strikes = _strikes(cell, ended)
        outcome.struck = len(strikes)
        since = max(strikes.values(), default=None)
    else:
        strikes = {}
        since = ended.struck
    if since is None:
        outcome.wrong.append("no victim came to fail")
        return outcome
    if cell.fault == "launcher":  # its ranks die with it: that nothing is left is the test
        return outcome
    # Of two, one may hear of the other before it gets there: it is then a survivor like the rest.
    spared = [rank for rank in cell.victims if cell.strikes_itself and rank not in strikes]
    _judge_survivors(cell, ended, since, cell.survivors + spared, outcome)
    if ended.at - since > cell.ends_s:
        late = f"horonrun ended {ended.at - since:.1f} s after the fault"
        outcome.wrong.append(f"{late}, more than {cell.ends_s:g} s")
    if not _accused(cell, ended.errors):
        outcome.wrong.append("horonrun's last words name no victim")
    expected = _CODES.get(cell.fault)
    if ended.code == 0 or (expected is not None and ended.code != expected):
        outcome.wrong.append(f"exit code {ended.code} instead of {expected or 'an error'}")
    return outcome


def _judge_survivors(
    cell: Cell, ended: Ended, since: float, survivors: list[int], outcome: Outcome
) -> None:
    found = re.findall(r"^cell (\d+) (error|left) ([\d.]+) ?(.*)$", ended.notes, re.M)
    ends = {int(rank): (what, float(when), rest) for rank, what, when, rest in found}
    for rank in survivors:
        what, when, sentence = ends.get(rank, ("", 0.0, "said nothing"))
        if what == "left" and cell.phase == "shutdown":
            continue  # nothing was pending any more
        if what != "error" or not _names_it(cell, rank, sentence):
            outcome.wrong.append(f"rank {rank}: {what} {sentence}")
            continue
        outcome.heard(cell.near(rank), when - since)
        if when - since > cell.bound_s(rank):
            late = f"rank {rank} heard after {when - since:.2f} s, more than {cell.bound_s(rank)} s"
            outcome.wrong.append(late)


def _strikes(cell: Cell, ended: Ended) -> dict[int, float]:
    """When each victim failed, as it said itself."""
    if cell.fault == "raise":
        raised = re.findall(r"^cell (\d+) raise ([\d.]+)$", ended.notes, re.M)
        return {int(rank): float(when) for rank, when in raised}
    found = re.findall(r"^cell (\d+) begin [\d.]+ (\d+)$", ended.notes, re.M)
    ranks = {process: int(rank) for rank, process in found}
    strikes = re.findall(_FAULT_AT, ended.errors, re.M)
    return {ranks[process]: float(when) for when, process in strikes}


def _names_it(cell: Cell, rank: int, sentence: str) -> bool:
    """Whether a survivor's error names who is at fault, and what happened."""
    if cell.fault == "cut":
        return _names_a_host(cell, rank, sentence)
    if not any(f"rank {victim} " in sentence for victim in cell.victims):
        return False
    if cell.fault == "raise" and cell.phase == "init":  # it has nobody to tell yet
        return "exited with code 1" in sentence
    if cell.fault == "stop" and "has been stopped" in sentence:  # horonrun or a keeper saw it
        return True
    if _NAMES[cell.fault] in sentence:
        return True
    # Of several hosts, a rank beside it hears the end of its sockets first, and may tell the others.
    # Who raises has said why before.
    return cell.hosts > 1 and cell.fault != "raise" and "ended without leaving the job" in sentence


def _names_a_host(cell: Cell, rank: int, sentence: str) -> bool:
    """Whether it names a host, or a rank on one, that cannot be reached any more."""
    beyond = [r for r in range(NP) if cell.host_of(r) != cell.host_of(rank)]
    names = [f"rank {r} " for r in beyond]
    names += [f"on host h{cell.host_of(r)}" for r in beyond]
    names += [f"host h{cell.host_of(r)}," for r in beyond] + ["horonrun on h1"]
    heard = f"nothing heard for {HOST_TIMEOUT_S} s" in sentence
    return any(name in sentence for name in names) and (heard or "has not answered" in sentence)


def _accused(cell: Cell, errors: str) -> bool:
    """Whether horonrun's last words name a victim; of a cut link, the host beyond it."""
    words = re.findall(r"^horonrun: (?!the last lines)(.*)$", errors, re.M)
    last = words[-1] if words else ""
    if cell.fault == "cut":
        return last.startswith("lost contact with host h2, where rank ")
    return any(last.startswith(f"rank {victim} ") for victim in cell.victims)
