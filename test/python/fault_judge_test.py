"""What the fault matrix calls wrong: each sentence of a job that ended well, made wrong alone."""

from dataclasses import replace

import pytest
from fault_cells import Cell
from fault_judge import Ended, judge

KILLED = Cell("kill", "reduce", "last", 1)
STOPPED = Cell("stop", "shutdown", "last", 1)
WELL = Ended(
    notes="".join(
        f"cell {rank} error 100.5 4 rank 3 was killed by signal 9 (SIGKILL)\n" for rank in range(3)
    ),
    errors="horon: fault at 100.000\nhoronrun: rank 3 was killed by signal 9 (SIGKILL)\n",
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
    notes = "cell 0 begin 1.0\n" + "".join(f"cell {rank} left 103.0\n" for rank in range(3))
    errors = "horon: fault at 100.0\nhoronrun: rank 3 has been stopped (SIGSTOP) for 2 s\n"
    ended = Ended(notes, errors, code=137, struck=None, at=100.0 + STOPPED.ends_s)
    assert judge(STOPPED, ended).wrong == []
