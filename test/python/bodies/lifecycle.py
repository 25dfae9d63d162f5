"""Before init, after shutdown, again."""

import contextlib
import gc
import os
import weakref

import every_call
import torch
from common import close, raises, same

import horon
import horon.torch as hvd

OWN_LIFE = True
QUERIES = (hvd.rank, hvd.size, hvd.local_rank, hvd.local_size, hvd.cross_rank, hvd.cross_size)
NOT_INITIALIZED = (hvd.HoronNotInitialized, hvd.HoronError, ValueError, RuntimeError)


def refuses_everything():
    assert not hvd.is_initialized()
    for query in QUERIES:
        with raises(*NOT_INITIALIZED, words=["hvd.init()"]):
            query()
    with raises(*NOT_INITIALIZED):
        hvd.global_process_set.size()
    for name, call in every_call.each():
        with raises(*NOT_INITIALIZED, of=name):
            call()


def check_before_init():
    refuses_everything()
    hvd.shutdown()


def hvd_is_alone():
    started = ("HORON_LAUNCHER_FD", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
    return not any(name in os.environ for name in started)


def refuses_to_be_alone():
    for variables, words in [
        ({"HORON_SIZE": "4"}, ["HORON_SIZE=4", "horonrun"]),
        ({"SLURM_STEP_NUM_TASKS": "3"}, ["srun started 3 tasks", "--mpi=pmix"]),
        ({"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2"},
         ["torchrun started 2 processes", "horonrun -np 2"]),
    ]:
        os.environ.update(variables)
        with raises(ValueError, words=words):
            hvd.init()
        for name in variables:
            del os.environ[name]


def check_wrong_environment():
    os.environ["HORON_FUSION_THRESHOLD"] = "abc"
    with raises(hvd.HoronInvalidArgument, ValueError, words=["HORON_FUSION_THRESHOLD", "abc"]):
        hvd.init()
    del os.environ["HORON_FUSION_THRESHOLD"]
    if hvd_is_alone():
        refuses_to_be_alone()
    with raises(ValueError, words=["dynamic"]):
        hvd.init(process_sets="static")
    refuses_everything()


def check_an_init_that_is_refused_leaves_nothing():
    with raises(hvd.HoronUnsupported, words=["use a ProcessSet"]):
        hvd.init(comm=list(range(99)))
    assert not hvd.is_initialized()


def check_init():
    hvd.init()
    hvd.init()
    assert hvd.is_initialized()
    assert 0 <= hvd.rank() < hvd.size() and 0 <= hvd.local_rank() < hvd.local_size()
    assert hvd.cross_size() * hvd.local_size() == hvd.size()
    assert hvd.is_homogeneous() is True
    ranks = hvd.allgather(torch.tensor([hvd.rank()]))
    same(ranks, torch.arange(hvd.size()))
    assert horon.__version__ and horon.controller() and horon.transport()
    assert "FUSION_THRESHOLD" in {name for name, _, _ in horon.knobs()}
    assert isinstance(hvd.mpi_built(), bool) and isinstance(hvd.mpi_enabled(), bool)
    with raises(hvd.HoronUnsupported):
        hvd.init(comm=list(range(hvd.size() + 1)))
    hvd.init(comm=list(range(hvd.size())))


def check_shutdown_fails_what_is_pending():
    if hvd.size() > 1 and hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(2), name="never")
    hvd.shutdown()
    if "handle" in locals():
        with raises(hvd.HoronAborted, hvd.HorovodInternalError, RuntimeError):
            hvd.synchronize(handle)
    refuses_everything()


def check_init_that_fails_can_be_done_again():
    with raises(hvd.HoronError, ValueError, words=["exists"]):
        hvd.init(process_sets=[hvd.ProcessSet([0]), hvd.ProcessSet([0])])
    hvd.shutdown()
    hvd.init()
    same(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(hvd.size())))
    hvd.shutdown()


def check_again():
    some = hvd.ProcessSet([0])
    for _ in range(2):
        hvd.init()
        if hvd.size() > 1:
            hvd.init(process_sets=[some])
            hvd.init(process_sets=[some])
            assert some.size() == 1 and some.included() == (hvd.rank() == 0)
        same(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(hvd.size())))
        hvd.shutdown()
        assert some.process_set_id is None
        refuses_everything()


def check_repeated_calls_again():
    """What was registered in the last job is worth nothing in the next."""
    for _ in range(3):
        hvd.init()
        for _ in range(3):
            tensor = torch.ones(6)
            total = hvd.allreduce_(tensor, name="again", op=hvd.Sum)
            same(total, torch.full((6,), float(hvd.size())))
        hvd.shutdown()
        with raises(*NOT_INITIALIZED):
            hvd.allreduce_(torch.ones(6), name="again", op=hvd.Sum)


def check_a_step_goes_on_in_the_next_job():
    """What has started in the last one may have failed with it; nothing else does."""
    hvd.init()
    early, late = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([early, late], lr=1.0),
                                         [("early", early), ("late", late)])
    for _ in range(2):
        optimizer.zero_grad()
        (early + late).sum().backward()
        optimizer.step()
    optimizer.zero_grad()
    early.sum().backward()
    hvd.barrier()  # who leaves before the others have come to it ends the job for them
    hvd.shutdown()
    hvd.init()
    (late.sum() * (hvd.rank() + 1)).backward()
    with contextlib.suppress(hvd.HoronAborted):
        optimizer.synchronize()
    close(late.grad, torch.full((3,), (hvd.size() + 1) / 2))
    optimizer.zero_grad()
    ((early + late).sum() * (hvd.rank() + 1)).backward()
    optimizer.step()
    for parameter in (early, late):
        close(parameter.grad, torch.full((3,), (hvd.size() + 1) / 2))
    hvd.shutdown()


def check_windows_keep_their_tensors_until_the_end():
    """Others may still change the tensor of a window that nobody freed."""
    hvd.init()
    tensors = [torch.zeros(5), torch.zeros(5)]
    windows = [hvd.Window(tensor, str(i)) for i, tensor in enumerate(tensors)]
    watches = [weakref.ref(window.tensor) for window in windows]
    windows[1].free()
    del tensors, windows
    gc.collect()
    assert watches[0]() is not None and watches[1]() is None
    hvd.shutdown()
    assert watches[0]() is None


def check_a_result_outlives_its_job():
    hvd.init()
    size = 1 << 22  # elements: large enough for memory of the runtime's
    ours = torch.arange(size, dtype=torch.int64)
    kept = hvd.allreduce(ours, name="kept", op=hvd.Max)
    hvd.shutdown()
    same(kept, ours)
    hvd.init()
    other = hvd.allreduce(torch.zeros(size, dtype=torch.int64), name="kept", op=hvd.Max)
    same(kept, ours)
    kept.add_(1)
    same(kept, ours + 1)
    hvd.shutdown()
    same(other, torch.zeros(size, dtype=torch.int64))
