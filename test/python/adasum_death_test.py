"""A rank is killed in the middle of an Adasum: parameters and inputs of the others stay as they
were, and an error says what may not have. bodies/adasum_death.py is the program."""

import os
import re
import sys
from pathlib import Path

import pytest
from conftest import in_full_tier, run_job

BODY = Path(__file__).resolve().parent / "bodies" / "adasum_death.py"
LINE = re.compile(r"^rank (\d) kept (\w+): (.*)$", re.M)
WAYS = [(2, "auto"), (3, "halving"), (4, "auto"), (3, "tree")]
QUICK = [("optimizer", 2, "auto", 9), ("optimizer", 3, "halving", 30), ("allreduce", 4, "auto", 9)]


@pytest.mark.parametrize("call, np, algorithm, number", [
    *QUICK,
    *(pytest.param(call, *way, number, marks=in_full_tier)
      for call in ("optimizer", "allreduce") for way in WAYS for number in (1, 2, 9, 30)
      if (call, *way, number) not in QUICK),
])
def test_what_the_others_keep(call, np, algorithm, number):
    """The rank dies at that pass of a combination."""
    command = [sys.executable, "-m", "horon.launcher", "-np", str(np), "--no-prefix",
               "--grace-period", "60", sys.executable, str(BODY)]
    environment = {**os.environ, "HORON_TEST_CALL": call, "HORON_TEST_PASS": str(number),
                   "HORON_ADASUM_ALGO": algorithm}
    output = run_job(command, np, environment, may_fail=True)
    said = {int(rank): rest for rank, *rest in LINE.findall(output)}
    assert set(said) == set(range(np)) - {1}, output
    for kept, sentence in said.values():
        assert kept == "True", output
        assert sentence.startswith("rank 1 was killed by signal 9"), output
