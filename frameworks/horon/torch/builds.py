"""Horovod's questions about what a build can do, answered for Horon."""

from horon import _core


def mpi_built() -> bool:
    """Whether MPI can be used here; it is opened only under an MPI launcher."""
    return _core.mpi_available()


def mpi_enabled() -> bool:
    """Whether this job negotiates or moves tensors over MPI."""
    return "mpi" in (_core.controller(), *_core.transport().split("+"))


def mpi_threads_supported() -> bool:
    """Whether other threads of this program may call MPI (mpi4py) while Horon does."""
    return _core.counter("mpi.thread_multiple") > 0


def gloo_built() -> bool:
    """Horovod's way without MPI is gloo; Horon's is shared memory, which is always there."""
    return False


def gloo_enabled() -> bool:
    return False


def nccl_built() -> int:
    """NCCL's version number (22809 is 2.28.9) where there is a GPU to use it; else 0."""
    return _core.gpu_parts()["nccl"][0]


def ddl_built() -> bool:
    return False


def ccl_built() -> bool:
    return False


def cuda_built() -> bool:
    """Whether this build takes tensors of GPUs."""
    return _core.cuda_built()


def rocm_built() -> bool:
    return False
