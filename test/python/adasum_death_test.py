"""A rank is killed in the middle of an Adasum: parameters and inputs of the others stay as they
were, and an error says what may not have. bodies/adasum_death.py is the program."""

import os
import re
import sys
from pathlib import Path

import pytest
from conftest import in_full_tier, run_job
from hosts import horonrun
from hosts import world as world  # a fixture

BODY = Path(__file__).resolve().parent / "bodies" / "adasum_death.py"
LINE = re.compile(r"^rank (\d) kept (\w+): (.*)$", re.M)
WAYS = [(2, "auto"), (3, "auto"), (3, "halving"), (4, "auto"), (3, "tree"), (4, "doubling"),
        (3, "ring")]
QUICK = [("optimizer", 2, "auto", 9), ("optimizer", 3, "auto", 30), ("optimizer", 3, "halving", 30),
         ("allreduce", 4, "auto", 9), ("allreduce", 3, "tree", 9), ("allreduce", 4, "doubling", 2),
         ("optimizer", 3, "ring", 9)]
CALLS = ("optimizer", "allreduce")


def command_of(np, *where):
    return horonrun(*where, "-np", str(np), "--no-prefix", "--grace-period", "60", sys.executable,
                    str(BODY))


def variables_of(call, number):
    """The rank dies at that pass of a combination."""
    return {"HORON_TEST_CALL": call, "HORON_TEST_PASS": str(number)}


def check_what_they_kept(output, np):
    said = {int(rank): rest for rank, *rest in LINE.findall(output)}
    assert set(said) == set(range(np)) - {1}, output
    for kept, sentence in said.values():
        assert kept == "True", output
        assert sentence.startswith("rank 1 was killed by signal 9"), output


@pytest.mark.parametrize("call, np, algorithm, number", [
    *QUICK,
    *(pytest.param(call, *way, number, marks=in_full_tier)
      for call in CALLS for way in WAYS for number in (1, 2, 9, 30)
      if (call, *way, number) not in QUICK),
])
def test_what_the_others_keep(call, np, algorithm, number):
    environment = {**os.environ, **variables_of(call, number), "HORON_ADASUM_ALGO": algorithm}
    output = run_job(command_of(np), np, environment, may_fail=True)
    check_what_they_kept(output, np)


@in_full_tier
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("local_op, each, number", [
    ("adasum", (2, 2), 9), ("adasum", (3, 1), 9), ("average", (2, 2), 9), ("sum", (1, 3), 2),
])
def test_what_the_others_keep_on_two_hosts(world, call, local_op, each, number):
    """Through the hosts first where they are uneven, and where local_op adds inside them."""
    np = sum(each)
    command = command_of(np, "-H", ",".join(f"h{i}:{n}" for i, n in enumerate(each, 1)))
    done = world(2, *command, **variables_of(call, number), HORON_TEST_LOCAL_OP=local_op)
    check_what_they_kept(done.out, np)
