"""Under a real Slurm: a controller, and a slurmd on each of two hosts, which are namespaces of this
machine (test/support/slurm.sh). What befalls a job there is in slurm_scenes.py."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import in_full_tier
from hosts import HERE, Done, all_done, horonrun
from hosts import world as world  # a fixture

SLURM = HERE.parent / "support" / "slurm.sh"
TOOLS = ("munged", "slurmctld", "slurmd", "sinfo", "scontrol", "srun", "salloc", "sbatch")
LIMIT_S = 180  # a node has four tasks, each with PyTorch
WHO = """
import socket, horon
horon.init()
print("who", horon.rank(), horon.size(), socket.gethostname(), horon.local_rank(),
      horon.local_size(), horon.transport(), flush=True)
print("done", horon.rank(), flush=True)
"""
SUM = WHO + """
import torch, horon.torch as hvd
print("sum", hvd.allreduce(torch.tensor([1.0 + hvd.rank()]), op=hvd.Sum).item(), flush=True)
"""
IN_A_STEP_OF_ONE = ("salloc", "-N2", "--ntasks-per-node=2", "srun", "-N1", "-n1")


@pytest.fixture
def slurm(world) -> Callable[..., Done]:
    """slurm(nodes, *command, hosts=2): runs a command on h1 of a world, beside a Slurm on nodes."""
    if os.geteuid() != 0:
        pytest.skip("not root: slurmd sets the groups of whom it runs a job for")
    path = f"{os.environ['PATH']}:/usr/sbin"
    missing = [tool for tool in TOOLS if shutil.which(tool, path=path) is None]
    if missing:
        pytest.skip(f"no Slurm ({', '.join(missing)}); Debian: apt-get install slurm-wlm munge")

    def start(nodes: str, *command: str, hosts: int = 2, **changes: str) -> Done:
        return world(hosts, str(SLURM), nodes, *command, limit_s=LIMIT_S, **changes)

    return start


@pytest.fixture
def pmix(slurm) -> None:
    done = slurm("h1", "srun", "--mpi=pmix", "true", hosts=1)
    if done.code != 0:
        why = next((line for line in done.err.splitlines() if "error" in line), done.all)
        pytest.skip(f"srun --mpi=pmix: {why} (Debian: apt-get install libpmix-dev)")


def scene(slurm, name: str) -> dict:
    done = slurm("h1,h2", sys.executable, str(HERE / "slurm_scenes.py"), name)
    assert done.code == 0, done.all
    return json.loads(done.out.splitlines()[-1])


def nothing_left(seen: dict) -> None:
    assert seen["left"] == [] and seen["files"] == [], seen


# --- horonrun in an allocation --------------------------------------------------------------------


@pytest.mark.parametrize(
    "hosts, nodes, tasks, want",
    [
        (2, "h1,h2", "--ntasks-per-node=2", ["h1", "h1", "h2", "h2"]),
        (2, "h1,h2", "-n3", ["h1", "h1", "h2"]),
        pytest.param(3, "h2,h3", "--ntasks-per-node=2", ["h2", "h2", "h3", "h3"],
                     marks=in_full_tier),  # h1 is a login node
    ],
)
def test_all_tasks_of_an_allocation(slurm, hosts, nodes, tasks, want):
    """The ranks come to the other nodes by srun: there is no remote shell in this world."""
    done = slurm(nodes, "salloc", "-N2", tasks, *horonrun("python", "-c", SUM), hosts=hosts)
    np = len(want)
    ranks = sorted(re.findall(r"^\[(\d)\] who (\d) (\d) (h\d) ", done.out, re.MULTILINE))
    assert ranks == [(str(r), str(r), str(np), host) for r, host in enumerate(want)], done.all
    total = sum(range(1, np + 1))
    assert done.out.count(f"] sum {total}.0\n") == np and done.code == 0, done.all
    each = ", ".join(f"{host}:{want.count(host)}" for host in sorted(set(want)))
    assert f"horonrun: Slurm job 1: {np} ranks on {each}\n" in done.err, done.all


def test_a_batch_job_has_the_exit_code(slurm, tmp_path):
    script = tmp_path / "job"
    script.write_text('#!/bin/sh\nexec "$@"\n')
    code = WHO + "import sys; sys.exit(7 if horon.rank() == 2 else 0)"
    done = slurm("h1,h2", "sbatch", "-W", "-N2", "-n3", "-o", str(tmp_path / "output"), str(script),
                 *horonrun("python", "-c", code))
    said = (tmp_path / "output").read_text()
    assert done.code == 7 and "horonrun: rank 2 exited with code 7" in said, done.all + said
    assert re.findall(r"^\[2\] who .*$", said, re.MULTILINE) == ["[2] who 2 3 h2 0 1 mpi"], said


def test_an_interactive_step_is_the_allocation(slurm):
    """As salloc starts a shell where sites have set LaunchParameters=use_interactive_step."""
    step = ("salloc", "-N2", "-n3", "srun", "--interactive", "--preserve-env", "--mpi=none")
    done = slurm("h1,h2", *step, *horonrun("--no-prefix", "python", "-c", WHO),
                 WORLD_SLURM="LaunchParameters=use_interactive_step")
    all_done(done, 3)


def test_a_shell_in_a_step_says_which_hosts(slurm):
    """Slurm counts the tasks of the step there, and so would mpirun."""
    done = slurm("h1,h2", *IN_A_STEP_OF_ONE, *horonrun("true"))
    assert done.code == 2 and ("horonrun: SLURM_TASKS_PER_NODE=1 (a step of srun's has its own) "
                               "does not fit the 2 hosts of the allocation; name hosts and slots "
                               "with -H, as in -H h1:2,h2:2\n") in done.err, done.all
    done = slurm("h1,h2", *IN_A_STEP_OF_ONE,
                 *horonrun("-H", "h2:1,h1:2", "--no-prefix", "python", "-c", WHO))
    all_done(done, 3)
    assert "who 0 3 h2 0 1 mpi\n" in done.out, done.all


@in_full_tier
def test_more_ranks_than_tasks_where_hosts_are_named(slurm):
    done = slurm("h1,h2", "salloc", "-N2", "-n2",
                 *horonrun("-H", "h1:1,h2:2", "--no-prefix", "python", "-c", WHO))
    all_done(done, 3)


@pytest.mark.parametrize("rank_of", ["srun -N2 -n4", "salloc -N2 -n2 MPIRUN --allow-run-as-root"])
def test_horonrun_in_tasks_is_refused_in_one_line(slurm, rank_of):
    """On the second node mpirun's ranks have the variables of the step of its daemon."""
    mpirun = str(Path(sys.prefix) / "bin" / "mpirun")
    if "MPIRUN" in rank_of and not os.path.exists(mpirun):
        pytest.skip(f"no {mpirun}")
    command = rank_of.replace("MPIRUN", mpirun).split()
    done = slurm("h1,h2", *command, *horonrun("-np", "2", "echo", "started"))
    said = [line for line in done.err.splitlines() if line.startswith("horonrun:")]
    assert done.code == 2 and "started" not in done.out, done.all
    assert said and len({re.sub(r"RANK=\d", "", line) for line in said}) == 1, done.all
    assert "would start a job in each of its ranks" in said[0], said


# --- srun without horonrun ------------------------------------------------------------------------


def test_srun_with_pmix(slurm, pmix):
    done = slurm("h1,h2", "srun", "-N2", "-n4", "--mpi=pmix", sys.executable, "-c", SUM)
    all_done(done, 4)
    who = set(re.findall(r"^who .*$", done.out, re.MULTILINE))
    assert who == {f"who {r} 4 h{r // 2 + 1} {r % 2} 2 shm+mpi" for r in range(4)}, done.all
    assert done.out.count("sum 10.0\n") == 4, done.all


@pytest.mark.parametrize(
    "how, words",
    [
        ("none", "srun started 4 tasks without telling MPI: use srun --mpi=pmix"),
        ("pmi2", "PMI_SIZE=4, but MPI (Open MPI v"),
    ],
)
def test_srun_that_mpi_does_not_understand(slurm, how, words):
    """Never four jobs of one rank each."""
    done = slurm("h1,h2", "srun", "-N2", "-n4", f"--mpi={how}", sys.executable, "-c", WHO)
    assert done.code == 1 and "who" not in done.out, done.all
    errors = [x for x in done.err.splitlines() if x.startswith("horon.errors.")]
    assert len(errors) == 4 and all(words in x and "srun --mpi=pmix" in x for x in errors), done.all


@pytest.mark.parametrize(
    "variables",
    [
        {"PMI_RANK": "0", "PMI_SIZE": "4"},
        {"HORON_CONTROLLER": "mpi", "SLURM_STEP_NUM_TASKS": "4"},
    ],
)
def test_an_mpi_that_knows_one_rank_of_several(needs_mpi, variables):
    """The same without Slurm."""
    done = subprocess.run([sys.executable, "-c", WHO], env={**os.environ, **variables},
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "takes this process for the only rank" in done.stderr, done
    assert "=4, but MPI (Open MPI v" in done.stderr and done.stdout == "", done


# --- what befalls a job ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, code, said",
    [
        ("killed", 137, "rank 2 was killed by signal 9 (SIGKILL)"),
        pytest.param("raised", 1, "rank 2 raised ValueError: bad batch", marks=in_full_tier),
    ],
)
def test_a_rank_that_fails_ends_the_job(slurm, name, code, said):
    seen = scene(slurm, name)
    assert seen["code"] == code and f"horonrun: {said}" in seen["output"], seen
    for rank in (0, 1, 3):  # each has heard of it
        assert re.search(rf"^\[{rank}\] horon\.errors\.\w+: .*{re.escape(said)}", seen["output"],
                         re.MULTILINE), seen
    assert seen["gone_after"] < 20, seen
    nothing_left(seen)


@in_full_tier
@pytest.mark.parametrize(
    "name, said",
    [
        ("cancelled_batch", "JOB 1 ON h1 CANCELLED"),
        ("cancelled_allocation", "was ended by the MPI daemon of its host"),  # srun's step was
    ],
)
def test_scancel_leaves_nothing(slurm, name, said):
    seen = scene(slurm, name)
    assert said in seen["output"] and seen["gone_after"] < 20, seen
    nothing_left(seen)


@in_full_tier
def test_a_rank_killed_under_srun_ends_the_job(slurm, pmix):
    seen = scene(slurm, "killed_under_srun")
    assert seen["code"] != 0 and "rank 2 ended without leaving the job" in seen["output"], seen
    assert seen["gone_after"] < 20, seen
    nothing_left(seen)
