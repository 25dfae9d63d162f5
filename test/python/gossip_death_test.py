"""A rank dies while ranks gossip between peers: the others go on. bodies/gossip_death.py is the
program."""

import os
import re
import sys
from pathlib import Path

import pytest
from conftest import in_full_tier, run_job

BODY = Path(__file__).resolve().parent / "bodies" / "gossip_death.py"
LINE = re.compile(r"rank (\d) went on: value (\S+) kept (\S+) whole (\w+) unreached (\d+) "
                  r"pairs lost (\d+)")


@pytest.mark.parametrize("algorithm", [
    pytest.param("window", marks=in_full_tier), "asgp", "adpsgd",
    pytest.param("dpsgd", marks=in_full_tier), "sgp",
])
def test_the_others_go_on(algorithm, tmp_path):
    command = [sys.executable, "-m", "horon.launcher", "-np", "3", "--no-prefix", "--grace-period",
               "60", sys.executable, str(BODY)]
    environment = {**os.environ, "HORON_TEST_ALGORITHM": algorithm,
                   "HORON_TEST_FOLDER": str(tmp_path)}
    output = run_job(command, 3, environment, may_fail=True)
    assert "rank 1 was killed by signal 9" in output, output
    said = {int(line[1]): line for line in LINE.finditer(output)}
    assert set(said) == {0, 2}, output
    values = [float(line[2]) for line in said.values()]
    kept = [float(line[3]) for line in said.values()]
    assert all(0 <= value <= 2 and line[4] == "True" for value, line in zip(values, said.values()))
    assert all(int(line[5]) > 0 for line in said.values()), "nobody was counted as left out"
    if algorithm == "adpsgd":  # of those with the dead rank
        assert all(int(line[6]) > 0 for line in said.values()), output
    assert abs(values[0] - values[1]) < 0.02, output  # inside the node they go on, and agree
    # What would go to the dead rank stays: else half would be gone with every second step.
    assert max(kept) > 1e-3, output
