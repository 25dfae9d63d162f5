"""What horonrun finds itself in: a Slurm allocation, another launcher's job, MPIs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from .refusal import Refusal

# Who starts processes with which variable. A Slurm step of one task is a user's shell.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "Open MPI's mpirun"),
    ("PMIX_RANK", "a PMIx launcher (srun or mpirun)"),
    ("PMI_RANK", "a PMI launcher (MPICH's mpiexec or srun)"),
    ("MV2_COMM_WORLD_RANK", "MVAPICH's mpirun"),
    ("TORCHELASTIC_RUN_ID", "torchrun"),
)


def _starter(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Variable and name of the launcher that this process is a rank of."""
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "")
    if tasks == "1":  # srun --pty bash
        return None
    for variable, launcher in _LAUNCHERS:
        if variable in environment:
            return variable, launcher
    return ("SLURM_STEP_NUM_TASKS", "srun") if tasks else None


def refuse_nested(environment: Mapping[str, str]) -> None:
    """A rank of another launcher's job starts no job: there would be one for each of them."""
    found = _starter(environment)
    if found is not None:
        variable, launcher = found
        # Under torchrun the ranks of Horon would not find each other.
        instead = "with horonrun alone" if launcher == "torchrun" else "without horonrun"
        raise Refusal(
            f"this process was started by {launcher} ({variable}={environment[variable]}), and "
            f"horonrun would start a job in each of its ranks: run the program {instead}"
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
