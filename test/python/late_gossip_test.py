"""A rank too late for a round of negotiated gossip. bodies/late_gossip.py is the program."""

from conftest import in_full_tier

LIMIT = {"HORON_GOSSIP_TIMEOUT": "2"}


def test_on_one_host(launch):
    output = launch(4, "late_gossip", env=LIMIT)
    assert "rank 3 has not come for 2.0 s (HORON_GOSSIP_TIMEOUT): this round is left out" in output


@in_full_tier
def test_on_pretended_nodes(launch, needs_mpi):
    launch(4, "late_gossip", launcher="mpirun", env={**LIMIT, "HORON_LOCAL_SIZE": "2"})
