"""horon.torch under horonrun and under mpirun, with 1 to 4 ranks. The checks are in bodies/."""

import pytest
from conftest import in_full_tier

ALL = ["collectives", "new_results", "errors", "timeouts", "repeats", "gradients", "optimizers",
       "optimizer_use", "objects", "gradient_views",
       "process_sets", "aggregations", "bits", "adasum", "adasum_optimizer", "adasum_amp",
       "adasum_local_steps", "adasum_properties", "gossip", "gossip_optimizer", "gossip_by_nodes",
       "bluefog", "other_gpus"]
OPTIMIZERS = ["async_gossip", "round_gossip", "bluefog_optimizers", "gossip_modules",
              "layered_gossip", "tracking", "advice", "end_to_end", "windows"]


@pytest.mark.parametrize("np", [1, pytest.param(2, marks=in_full_tier), 4])
def test_horonrun(launch, np):
    launch(np, *ALL)


@in_full_tier
def test_horonrun_with_an_odd_number(launch):
    """The bodies for which that is something else."""
    launch(3, "collectives", "optimizers", "adasum", "gossip", "gossip_optimizer", *OPTIMIZERS)


@pytest.mark.parametrize("np", [
    2, *(pytest.param(np, marks=in_full_tier) for np in (1, 3, 4)),
])
def test_mpirun(launch, needs_mpi, np):
    """The quick tier has hosts of two ranks (hosts_bodies_test)."""
    launch(np, *ALL, launcher="mpirun")


def test_without_launcher(launch):
    launch(1, *ALL, *OPTIMIZERS, launcher="plain")


@pytest.mark.parametrize("np", [1, 2, 4])
def test_lifecycle(launch, np):
    launch(np, "lifecycle")


@pytest.mark.parametrize("np", [pytest.param(3, marks=in_full_tier), 4])
def test_gossip_goes_on_in_the_next_job(launch, np):
    launch(np, "gossip_resume")


def test_lifecycle_without_launcher(launch):
    launch(1, "lifecycle", launcher="plain")


def test_lifecycle_mpirun(launch, needs_mpi):
    launch(2, "lifecycle", launcher="mpirun")


def test_lives_that_lock(launch):
    launch(2, "locked_lives")


@pytest.mark.parametrize("np, each", [(4, 2), pytest.param(3, 1, marks=in_full_tier)])
def test_lives_that_lock_between_nodes(launch, needs_mpi, np, each):
    launch(np, "locked_lives", launcher="mpirun", env={"HORON_LOCAL_SIZE": str(each)})


@in_full_tier  # the quick tier has hosts of two ranks
def test_pretended_nodes(launch, needs_mpi):
    """Blocks of two ranks as nodes: inside over shared memory, between them over MPI."""
    launch(4, *ALL, *OPTIMIZERS, "gossip_grad", launcher="mpirun",
           env={"HORON_LOCAL_SIZE": "2"})


@pytest.mark.parametrize("np, each", [(3, 2), (4, 3), (5, 2)])
def test_pretended_nodes_of_different_sizes(launch, needs_mpi, np, each):
    launch(np, "gossip_by_nodes", launcher="mpirun", env={"HORON_LOCAL_SIZE": str(each)})


@in_full_tier
def test_bluefogs_scripts_on_nodes_of_three(launch, needs_mpi):
    launch(6, "bluefog_scripts", launcher="mpirun", env={"HORON_LOCAL_SIZE": "3"})


@pytest.mark.parametrize("np", [pytest.param(2, marks=in_full_tier), 3])
def test_ranks_that_group_differently(launch, np):
    launch(np, "groupings")


@pytest.mark.parametrize("np, deterministic", [
    (2, "0"), (3, "1"),
    pytest.param(2, "1", marks=in_full_tier), pytest.param(3, "0", marks=in_full_tier),
])
def test_every_rank_a_node(launch, needs_mpi, np, deterministic):
    """Every op and element type as messages over MPI, and as MPI's own collectives."""
    launch(np, "collectives", launcher="mpirun",
           env={"HORON_LOCAL_SIZE": "1", "HORON_DETERMINISTIC": deterministic})


@pytest.mark.parametrize("variables", [
    {"HORON_LEND": "0"},
    {"HORON_FUSION_THRESHOLD": "0"},
    {"HORON_CACHE_CAPACITY": "0"},
], ids=lambda variables: next(iter(variables)))
@in_full_tier
def test_knobs(launch, variables):
    launch(3, *ALL, env=variables)
