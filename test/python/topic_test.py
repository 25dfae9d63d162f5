"""The topics of horon.torch one by one, so that a failure of one hides no other: what a program in
Horovod's manner is made of, with 2 and 4 ranks, over shared memory and over MPI. Stalls have a file
of their own (failure_test.py). In the quick tier most follow each other in one job (shim_test.py,
surface_test.py)."""

import pytest
from conftest import in_full_tier

TOPICS = {
    "process_sets": ["process_sets", "join::process_set", "adasum::process_set",
                     "gossip::process_set", "gradient_views::process_set"],
    "init": ["init_arguments"],
    "join": ["join"],
    "autograd": ["gradients"],
    "optimizer": ["optimizers", "optimizer_use", "gradient_views"],
    "sparse": ["collectives::sparse", "optimizers::sparse", "gradient_views::sparse"],
    "compression": ["collectives::compression", "optimizers::compression",
                    "gradients::compressed", "gradient_views::compressed"],
    "adasum": ["adasum", "adasum_optimizer", "adasum_amp", "adasum_local_steps",
               "adasum_properties"],
    "errors": ["errors"],
}


@pytest.mark.parametrize("np, launcher", [(2, "horonrun"), *(
    pytest.param(np, launcher, marks=in_full_tier)
    for np, launcher in ((4, "horonrun"), (2, "mpirun"), (4, "mpirun"))
)])
@pytest.mark.parametrize("topic", [
    topic if topic == "init" else pytest.param(topic, marks=in_full_tier) for topic in TOPICS
])
def test_topic(launch, topic, np, launcher, request):
    if launcher == "mpirun":
        request.getfixturevalue("needs_mpi")
    launch(np, *TOPICS[topic], launcher=launcher)


@pytest.mark.parametrize("np", [2, pytest.param(4, marks=in_full_tier)])
def test_what_adasum_is_fused_with(launch, np):
    """What a rank submits before it waits is taken together, also where it is held up meanwhile."""
    launch(np, "adasum_fusion", env={"HORON_CYCLE_TIME": "10000"})


def test_adasum_that_has_no_effect_says_so_once(launch):
    output = launch(2, "adasum_on_one_node")
    assert output.count("local=average on a single node is a plain average: Adasum acts") == 1, output


@pytest.mark.parametrize("np", [2, pytest.param(4, marks=in_full_tier)])
def test_communicators_of_mpi4py(launch, needs_mpi, np):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    launch(np, "communicators", launcher="mpirun")
