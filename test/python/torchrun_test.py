"""Under torchrun: refused with a word on what to do, not silently a job of one rank each."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "processes, code, words",
    [
        ("2", 1, "torchrun started 2 processes, which know nothing of each other to Horon: start "
                 "them with horonrun -np 2 (or mpirun, srun)"),
        ("1", 0, "size 1"),
    ],
)
def test_init_under_torchrun(processes, code, words):
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
         processes, "--no-python", sys.executable, "-c",
         "import horon; horon.init(); print('size', horon.size())"],
        text=True, capture_output=True, timeout=120, check=False,
    )
    assert done.returncode == code and words in done.stdout + done.stderr, done.stderr
