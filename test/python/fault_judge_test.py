"""What the fault matrix calls wrong: each sentence of a job that ended well, made wrong alone."""

from dataclasses import replace

import pytest
from fault_cells import Cell
from fault_judge import Ended, judge

KILLED = Cell("kill", "reduce", "last", 1)
STOPPED = Cell("stop", "shutdown", "last", 1)
WELL = Ended(
    notes="".join(f"cell {rank} begin 1.0 {70 + rank}\n" for rank in range(4))
    + "".join(
        f"cell {rank} error 100.5 4 rank 3 was killed by signal 9 (SIGKILL)\n" for rank in range(3)
    ),
    errors="horon: fault at 100.000 in process 73\n"
    "horonrun: rank 3 was killed by signal 9 (SIGKILL)\n",
    code=137,
    struck=None,
    at=101.0,
)


def test_a_job_that_ended_well():
    outcome = judge(KILLED, WELL)
    assert outcome.wrong == [] and (outcome.near_s, outcome.far_s) == (0.5, None)


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"notes": WELL.notes.replace("cell 1 error", "cell 1 begin")}, "rank 1:  said nothing"),
        ({"notes": WELL.notes.replace("rank 3 was", "rank 2 was")}, "rank 2 was killed"),
        ({"notes": WELL.notes.replace("100.5", "101.5")}, "heard after 1.50 s, more than 1.0 s"),
        ({"notes": WELL.notes.replace("cell 0 error", "cell 0 left")}, "rank 0: left"),
        ({"errors": WELL.errors.replace("rank 3", "rank 1")}, "last words name no victim"),
        ({"errors": WELL.errors.replace("horon: fault", "")}, "no victim came to fail"),
        ({"code": 0}, "exit code 0 instead of 137"),
        ({"code": 1}, "exit code 1 instead of 137"),
        ({"at": 100.0 + KILLED.ends_s + 0.1}, f"more than {KILLED.ends_s:g} s"),
    ],
)
def test_what_is_wrong(change, sentence):
    assert any(sentence in wrong for wrong in judge(KILLED, replace(WELL, **change)).wrong)


def test_what_came_before_the_fault_does_not_count():
    """A machine that needs a minute to get there is slow, not wrong."""
    notes = "cell 3 begin 1.0 73\n" + "".join(f"cell {rank} left 103.0\n" for rank in range(3))
    errors = "horon: fault at 100.0 in process 73\nhoronrun: rank 3 has been stopped (SIGSTOP)\n"
    ended = Ended(notes, errors, code=137, struck=None, at=100.0 + STOPPED.ends_s)
    assert judge(STOPPED, ended).wrong == []


def test_of_two_that_fail_each_is_looked_at():
    """One that did not come to fail has to hear of the other."""
    two = replace(KILLED, who="two")
    heard = "cell {} error 100.5 4 rank 3 was killed by signal 9 (SIGKILL)\n"
    spared = replace(WELL, notes=WELL.notes.replace(heard.format(0), ""))
    assert judge(two, spared).wrong == ["rank 0:  said nothing"]
    assert judge(two, WELL).wrong == [] and judge(two, WELL).struck == 1
    both = replace(spared, errors="horon: fault at 100.1 in process 70\n" + WELL.errors)
    assert judge(two, both).wrong == [] and judge(two, both).struck == 2


@pytest.mark.parametrize("fault", ["cut", "launcher"])
def test_nobody_struck_from_outside(fault):
    """The job ended before a rank stood in the phase."""
    cell = Cell(fault, "reduce", "last", 2)
    assert judge(cell, WELL).wrong == ["no victim came to fail"]
