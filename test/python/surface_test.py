"""What programs written for horovod.torch use, and what PyTorch has that these never knew; windows
and gossip over them; on 2 and 4 ranks, over shared memory and over MPI. The checks are in bodies/,
in two launches."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import _command, in_full_tier, run_job

CALLS = ["join", "costs", "programs", "sync_batch_norm", "data", "timeline", "windows", "advice"]
OPTIMIZERS = ["async_gossip", "round_gossip", "bluefog_optimizers", "gossip_modules",
              "layered_gossip", "tracking", "end_to_end"]
both = pytest.mark.parametrize("bodies", [CALLS, OPTIMIZERS], ids=["calls", "optimizers"])


@both
@pytest.mark.parametrize("np", [pytest.param(2, marks=in_full_tier), 4])
def test_horonrun(launch, np, bodies):
    launch(np, *bodies)


@in_full_tier
@both
@pytest.mark.parametrize("np", [2, 4])
def test_mpirun(launch, needs_mpi, np, bodies):
    launch(np, *bodies, launcher="mpirun")


@pytest.mark.parametrize("np", [2, pytest.param(4, marks=in_full_tier)])
def test_modern(launch, np):
    """Each rank loads the compiler."""
    launch(np, "modern")


@pytest.mark.parametrize("np", [2, pytest.param(4, marks=in_full_tier)])
def test_modern_mpirun(launch, needs_mpi, np):
    launch(np, "modern", launcher="mpirun")


def test_sums_that_know_nothing_of_nodes(launch, needs_mpi):
    """By Horon's variable and by Horovod's."""
    launch(4, "flat", launcher="mpirun", env={"HORON_LOCAL_SIZE": "2"})


def test_steady_steps_between_nodes(launch, needs_mpi):
    launch(4, "costs::steady", "costs::moves", launcher="mpirun", env={"HORON_LOCAL_SIZE": "2"})


@pytest.mark.alone
def test_idling_and_waiting_between_nodes(launch, needs_mpi):
    launch(4, "costs::idle", "costs::waiting", launcher="mpirun", env={"HORON_LOCAL_SIZE": "2"})


@pytest.mark.alone
def test_a_blocking_call_does_not_sleep(launch):
    launch(2, "awake")


@pytest.mark.alone
@pytest.mark.parametrize("np", [2, 4])
def test_ranks_spread_over_cores(launch, np):
    """With a core for each, and with more ranks than cores."""
    launch(np, "spread")


@in_full_tier
def test_compiled_by_inductor(launch, tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("torch.compile's own backend needs a C++ compiler; there is no g++")
    launch(2, "inductor", env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)})


def signatures_in(text: str) -> dict:
    return {name: [part.strip() for part in arguments.split(",") if part.strip()]
            for name, arguments in re.findall(r"(\w+)\(([^)]*)\)", text)}


# Of horovod.torch 0.28: GLOBAL is global_process_set, NONE is Compression.none.
SIGNATURES = """
init(comm=None, process_sets=None) shutdown() is_initialized()
rank() size() local_rank() local_size() cross_rank() cross_size()
mpi_built() mpi_enabled() mpi_threads_supported() gloo_built() gloo_enabled() nccl_built()
ddl_built() ccl_built() cuda_built() rocm_built()
start_timeline(file_path, mark_cycles=False) stop_timeline()
allreduce(tensor, average=None, name=None, compression=NONE, op=None, SCALES, SET)
allreduce_async(tensor, average=None, name=None, op=None, SCALES, SET)
allreduce_(tensor, average=None, name=None, op=None, SCALES, SET)
allreduce_async_(tensor, average=None, name=None, op=None, SCALES, SET)
grouped_allreduce(tensors, average=None, name=None, compression=NONE, op=None, SCALES, SET)
grouped_allreduce_async(tensors, average=None, name=None, op=None, SCALES, SET)
grouped_allreduce_(tensors, average=None, name=None, op=None, SCALES, SET)
grouped_allreduce_async_(tensors, average=None, name=None, op=None, SCALES, SET)
sparse_allreduce_async(tensor, name, op, SET)
allgather(tensor, name=None, SET) allgather_async(tensor, name=None, SET)
grouped_allgather(tensors, name=None, SET) grouped_allgather_async(tensors, name=None, SET)
broadcast(tensor, root_rank, name=None, SET) broadcast_async(tensor, root_rank, name=None, SET)
broadcast_(tensor, root_rank, name=None, SET) broadcast_async_(tensor, root_rank, name=None, SET)
alltoall(tensor, splits=None, name=None, SET) alltoall_async(tensor, splits=None, name=None, SET)
reducescatter(tensor, name=None, compression=NONE, op=Average, SET, SCALES)
reducescatter_async(tensor, name=None, op=Average, SET, SCALES)
grouped_reducescatter(tensors, name=None, compression=NONE, op=Average, SET, SCALES)
grouped_reducescatter_async(tensors, name=None, op=Average, SET, SCALES)
poll(handle) synchronize(handle) barrier(SET) join(device=-1)
ProcessSet(ranks_or_comm) add_process_set(process_set) remove_process_set(process_set)
broadcast_parameters(params, root_rank)
broadcast_optimizer_state(optimizer, root_rank, model=None)
broadcast_object(obj, root_rank=0, name=None, SET) allgather_object(obj, name=None)
DistributedOptimizer(optimizer, named_parameters=None, compression=NONE, \
backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0, num_groups=0, groups=None, \
sparse_as_dense=False, SET)
SyncBatchNorm(num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)
""".replace("SET", "process_set=GLOBAL").replace(
    "SCALES", "prescale_factor=1.0, postscale_factor=1.0")
HOROVOD = signatures_in(SIGNATURES)
OTHERS = """Average Sum Adasum Min Max Product global_process_set Compression
HorovodInternalError elastic""".split()
NAMES = [*HOROVOD, *OTHERS]
# The same of a module of Horon's; what can only be given by its name has a star.
TELL = """
import importlib, inspect, json, sys, horon.torch as hvd
module, called, others = importlib.import_module(sys.argv[1]), *map(json.loads, sys.argv[2:])
words = {id(hvd.Average): "Average", id(hvd.global_process_set): "GLOBAL",
         id(hvd.Compression.none): "NONE"}
def tell(p):
    text = "*" * (p.kind is not p.POSITIONAL_OR_KEYWORD) + p.name
    if p.default is p.empty:
        return text
    return text + "=" + words.get(id(p.default), repr(p.default))
def signature(name):
    return [tell(p) for p in inspect.signature(getattr(module, name)).parameters.values()]
print(json.dumps([{name: signature(name) for name in called if hasattr(module, name)},
                  [name for name in called + others if not hasattr(module, name)]]))
"""


def told(module: str, called, others=()) -> list:
    """Signatures of what is called, and which names are missing."""
    names = [json.dumps([*called]), json.dumps([*others])]
    done = subprocess.run([sys.executable, "-c", TELL, module, *names], cwd="/",
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


ELASTIC = """
import horon.torch as hvd
assert hasattr(hvd.elastic, "ElasticSampler")
for name in ("run", "State", "ObjectState", "TorchState", "run_fn"):
    assert not hasattr(hvd.elastic, name)
    try:
        getattr(hvd.elastic, name)
    except hvd.HoronUnsupported as error:
        assert isinstance(error, AttributeError), type(error)
        assert str(error).startswith(f"hvd.elastic.{name}: elastic jobs are not in this version")
try:
    hvd.elastic.__path__
except AttributeError as error:
    assert type(error) is AttributeError, type(error)
"""
MIGRATING = (Path(__file__).parents[2] / "docs" / "migrating_from_horovod.md").read_text()


def test_names_of_elastic_jobs_say_that_there_are_none():
    subprocess.run([sys.executable, "-c", ELASTIC], cwd="/", check=True)


@pytest.fixture(scope="module")
def horon_torch():
    return told("horon.torch", HOROVOD, OTHERS)


def test_every_name_of_horovod_is_there_and_in_the_documentation(horon_torch):
    """The guide for those who come from Horovod says of each name what it is; only what it calls
    missing is."""
    table = MIGRATING.split("All 67 names")[1].split("Arguments that differ")[0]
    said = {}
    for row in re.findall(r"^\| (`.*?) \| (\w+) \|", table, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", row[0]):
            assert said.setdefault(name, row[1]) == row[1], name
    assert set(NAMES) <= set(said) and len(NAMES) == 67, set(NAMES) - set(said)
    assert set(horon_torch[1]) == {name for name in NAMES if said[name] == "missing"}


def test_signatures_are_horovods_but_for_what_is_documented(horon_torch):
    """Names, order and defaults of all arguments; others come after them, and are in the guide."""
    table = MIGRATING.split("Arguments that differ")[1].split("Beside `horovod.torch`")[0]
    documented = {}
    for names, arguments in re.findall(r"^\| (`.*?) \| (`.*?) \|", table, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            documented[name] = re.findall(r"`(.*?)`", arguments)
    signatures, differ = horon_torch[0], {}
    for name, theirs in HOROVOD.items():
        ours = signatures[name]
        first = [text.split("=")[0] for text in ours[:len(theirs)]]
        assert first == [text.split("=")[0] for text in theirs], (name, ours)
        more = [text for text in ours if text not in theirs]
        if more:
            differ[name] = more
    assert differ == documented


LATE = """
import time, torch, horon.torch as hvd
hvd.init()
if hvd.rank() == 1:
    time.sleep(2.5)  # late: longer than the report waits
hvd.allreduce(torch.ones(2), name="late")
print("done", hvd.rank(), flush=True)
"""


@pytest.mark.parametrize("launcher", ["horonrun", "mpirun"])
def test_a_late_rank_is_named(tmp_path, needs_mpi, launcher):
    """By the stall report, however the ranks negotiate."""
    script = tmp_path / "late.py"
    script.write_text(LATE)
    command = [*_command(launcher, 2), sys.executable, str(script)]
    out = run_job(command, 2, {"HORON_STALL_CHECK_TIME_SECONDS": "0.5"})
    assert re.search(r"warn.*'?late'?.*rank.? \[?1\]?", out), out


# As its users call them; what can only be given by its name has a star.
BLUEFOG = """
init(topology_fn=None, is_weighted=False) shutdown() suspend() resume()
size() rank() local_size() local_rank() machine_size() machine_rank() is_homogeneous()
nccl_built() mpi_threads_supported() unified_mpi_window_model_supported()
load_topology() load_machine_topology() is_topo_weighted() is_machine_topo_weighted()
set_topology(topology=None, is_weighted=False) set_machine_topology(topology, is_weighted=False)
in_neighbor_ranks() out_neighbor_ranks()
in_neighbor_machine_ranks() out_neighbor_machine_ranks()
allreduce(tensor, average=True, is_hierarchical_local=False, name=None)
allreduce_(tensor, average=True, is_hierarchical_local=False, name=None)
allreduce_nonblocking(tensor, average=True, is_hierarchical_local=False, name=None)
allreduce_nonblocking_(tensor, average=True, is_hierarchical_local=False, name=None)
broadcast(tensor, root_rank, name=None) broadcast_(tensor, root_rank, name=None)
broadcast_nonblocking(tensor, root_rank, name=None)
broadcast_nonblocking_(tensor, root_rank, name=None)
allgather(tensor, name=None) allgather_nonblocking(tensor, name=None)
neighbor_allgather(tensor, *src_ranks=None, *dst_ranks=None, *enable_topo_check=True, *name=None)
neighbor_allreduce(tensor, *self_weight=None, *src_weights=None, *dst_weights=None,
 *enable_topo_check=True, *name=None)
neighbor_allreduce_nonblocking(tensor, *self_weight=None, *src_weights=None, *dst_weights=None,
 *enable_topo_check=True, *name=None)
hierarchical_neighbor_allreduce(tensor, *self_weight=None, *src_machine_weights=None,
 *dst_machine_weights=None, *enable_topo_check=False, *name=None)
pair_gossip(tensor, target_rank, self_weight=None, pair_weight=None, name=None)
poll(handle) synchronize(handle) wait(handle) barrier()
win_create(tensor, name, zero_init=False) win_free(name=None)
win_update(name, self_weight=None, neighbor_weights=None, reset=False, clone=False,
 require_mutex=False)
win_update_then_collect(name, require_mutex=True)
win_put(tensor, name, self_weight=None, dst_weights=None, require_mutex=False)
win_put_nonblocking(tensor, name, self_weight=None, dst_weights=None, require_mutex=False)
win_get(name, src_weights=None, require_mutex=False)
win_accumulate(tensor, name, self_weight=None, dst_weights=None, require_mutex=False)
win_poll(handle) win_wait(handle) win_mutex(name, for_self=False, ranks=None) win_lock(name)
get_win_version(name) get_current_created_window_names() win_associated_p(name)
turn_on_win_ops_with_associated_p() turn_off_win_ops_with_associated_p()
set_skip_negotiate_stage(value) get_skip_negotiate_stage()
timeline_start_activity(tensor_name, activity_name) timeline_end_activity(tensor_name)
timeline_context(tensor_name, activity_name)
broadcast_parameters(params, root_rank) broadcast_optimizer_state(optimizer, root_rank, model=None)
allreduce_parameters(params)
ExponentialTwoGraph(size) ExponentialGraph(size, base=2) SymmetricExponentialGraph(size, base=4)
MeshGrid2DGraph(size, shape=None) StarGraph(size, center_rank=0)
RingGraph(size, connect_style=0) FullyConnectedGraph(size)
IsTopologyEquivalent(topo1, topo2) IsRegularGraph(topo)
GetRecvWeights(topo, rank) GetSendWeights(topo, rank)
GetDynamicOnePeerSendRecvRanks(topo, self_rank)
GetExp2DynamicSendRecvMachineRanks(world_size, local_size, self_rank, local_rank)
GetInnerOuterRingDynamicSendRecvRanks(world_size, local_size, self_rank)
GetInnerOuterExpo2DynamicSendRecvRanks(world_size, local_size, self_rank)
InferSourceFromDestinationRanks(dst_ranks, construct_adjacency_matrix=False)
InferDestinationFromSourceRanks(src_ranks, construct_adjacency_matrix=False)
"""


def test_bluefogs_calls_mean_the_same_here():
    """What is its own comes behind BlueFog's arguments, with a default."""
    expected = signatures_in(BLUEFOG)
    found, missing = told("horon.bluefog.torch", expected)
    assert not missing
    for name, arguments in expected.items():
        assert found[name][:len(arguments)] == arguments, name
        assert all("=" in own for own in found[name][len(arguments):]), name
