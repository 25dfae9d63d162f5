"""What horonrun finds itself in: a Slurm allocation, another launcher's job, MPIs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from .refusal import Refusal

# Who starts processes with which variable. Steps of srun's are not only tasks: one of a single task
# is a user's shell, and mpirun starts its daemons in one, whose ranks then have its variables.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "Open MPI's mpirun"),
    ("MV2_COMM_WORLD_RANK", "MVAPICH's mpirun"),
    ("TORCHELASTIC_RUN_ID", "torchrun"),
)
_LAUNCHERS_LIKE_SRUN = (
    ("PMIX_RANK", "a PMIx launcher (srun or mpirun)"),
    ("PMI_RANK", "a PMI launcher (MPICH's mpiexec or srun)"),
)
_INSTEAD = {
    "torchrun": "run the program with horonrun alone",  # its ranks would not find each other
    "srun": "start horonrun in the allocation itself (salloc, sbatch), or the program with "
            "srun --mpi=pmix and without horonrun",
}


def _starter(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Variable and name of the launcher that this process is a rank of."""
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "")
    found = [launcher for launcher in _LAUNCHERS if launcher[0] in environment]
    if tasks and tasks != "1":
        found.append(("SLURM_STEP_NUM_TASKS", "srun"))
    elif not tasks:
        found += [launcher for launcher in _LAUNCHERS_LIKE_SRUN if launcher[0] in environment]
    return found[0] if found else None


def refuse_nested(environment: Mapping[str, str]) -> None:
    """A rank of another launcher's job starts no job: there would be one for each of them."""
    found = _starter(environment)
    if found is not None:
        variable, launcher = found
        instead = _INSTEAD.get(launcher, "run the program without horonrun")
        raise Refusal(
            f"this process was started by {launcher} ({variable}={environment[variable]}), and "
            f"horonrun would start a job in each of its ranks: {instead}"
        )


def around(environment: Mapping[str, str]) -> list[str]:
    """Batch systems, launchers' variables and other MPIs, each in a few words."""
    found = []
    if "SLURM_JOB_ID" in environment:
        nodes = environment.get("SLURM_JOB_NODELIST", "?")
        found.append(f"Slurm job {environment['SLURM_JOB_ID']} on {nodes}")
    found += [
        f"{name} set"
        for name in (
            "PMI_RANK",
            "PMIX_RANK",
            "OMPI_COMM_WORLD_RANK",
            "TORCHELASTIC_RUN_ID",
            "MASTER_ADDR",
        )
        if name in environment
    ]
    mpich = shutil.which("mpiexec.hydra", path=environment.get("PATH", os.defpath))
    return found + ([f"MPICH's {mpich}"] if mpich is not None else [])


def described(environment: Mapping[str, str], mpirun: str | None, mpirun_version: str) -> str:
    """One line for --verbose."""
    found = around(environment)
    if mpirun is not None:
        found.append(f"{mpirun_version or 'an mpirun'} at {mpirun}")
    return "found " + ("; ".join(found) if found else "no batch system and no MPI")
