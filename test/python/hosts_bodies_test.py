"""The programs in bodies/ on several hosts, which are namespaces of this machine."""

from __future__ import annotations

from conftest import in_full_tier
from hosts import BODIES, HERE, all_done, host_list, horonrun
from hosts import world as world  # a fixture

ALL = [
    "collectives",
    "errors",
    "repeats",
    "gradients",
    "optimizers",
    "optimizer_use",
    "adasum",
    "adasum_optimizer",
    "adasum_amp",
    "objects",
    "process_sets",
    "aggregations",
    "bits",
    "gossip",
    "windows",
    "round_gossip",
    "join",
]

def run_bodies(world, hosts: int, each: int, *bodies: str, limit_s: float = 240,
               **variables: str) -> None:
    files = [str(BODIES / f"{body}.py") for body in bodies]
    done = world(
        hosts,
        *horonrun(
            "-H", host_list(hosts, each), "--no-prefix", "python", str(HERE / "runner.py"), *files
        ),
        limit_s=limit_s,
        **variables,
    )
    all_done(done, hosts * each)


@in_full_tier
def test_all_on_2_hosts(world):
    run_bodies(world, 2, 1, *ALL)


def test_all_on_2_hosts_with_2_ranks(world):
    run_bodies(world, 2, 2, *ALL)


def test_gradients_travel_during_backward(world):
    run_bodies(world, 2, 2, "overlap")


def test_lifecycle_on_2_hosts_with_2_ranks(world):
    run_bodies(world, 2, 2, "lifecycle")


def test_a_bucket_that_takes_a_second(world):
    run_bodies(world, 2, 2, "slow_links", WORLD_RATE="400mbit")


@in_full_tier
def test_all_on_4_hosts_with_2_ranks(world):
    run_bodies(world, 4, 2, *ALL)


@in_full_tier
def test_all_on_8_hosts(world):
    run_bodies(world, 8, 1, *ALL)
