"""horon.advice: what is chosen on links that are made up, and on shaped ones between hosts."""

import dataclasses
import math
import re
import subprocess

import pytest
from conftest import in_full_tier
from hosts import horonrun
from hosts import world as world  # a fixture

import horon
from horon.advice import ALLREDUCE, ASYNCHRONOUS, Advice, Job, Links, plan
from horon.topology import Topology

MB = 1e6
GIGABIT = 117.0 * MB  # bytes a second that a link of 1 Gbit/s carries
FAST = Links(1e-4, 1e-4, inside=5e9)


def job(hosts, each, bytes=100 * MB, compute=0.05) -> Job:
    size = hosts * each
    return Job(tuple(r // each for r in range(size)), int(bytes), (compute,) * size)


def links(hosts, outside, inside=5e9) -> Links:
    return Links(2e-4, 3e-4, inside, (outside,) * hosts)


def by_name(advice: Advice) -> dict:
    return {candidate.name: candidate for candidate in advice.candidates}


def test_fast_links_are_for_the_exact_mean():
    for advice in (plan(job(1, 8), FAST), plan(job(4, 2), links(4, 12e9)), plan(job(1, 1), FAST)):
        assert advice.chosen.name == ALLREDUCE and advice.op == horon.Average


def test_gossip_is_equal_where_it_does_the_same():
    assert horon.Gossip() == horon.Gossip("dpsgd") and horon.Gossip() != horon.Op("gossip")
    assert horon.Gossip(topology="ring") == horon.Gossip("dpsgd", "ring")
    assert len({horon.Gossip(topology="ring"), horon.Gossip("dpsgd", "ring")}) == 1
    different = [horon.Gossip(*arguments, **options) for arguments, options in (
        ((), {}), (("sgp",), {}), (("osgp",), {}), (("adpsgd",), {}), ((None, "ring"), {}),
        ((None, "auto"), {}), (("osgp",), {"sync_freq": 1}), (("sgp",), {"style": "atc"}),
        (("sgp",), {"negotiated": False}), (("dpsgd",), {"hierarchical": True}),
        (("dpsgd",), {"global_average_every": 3}), (("dpsgd",), {"what": "both"}))]
    for i, one in enumerate(different):
        assert [one == other for other in different] == [i == j for j in range(len(different))]


def test_slow_links_between_hosts_are_for_gossip_of_hosts():
    """4 x 2: an exchange moves 100 MB over each link, an allreduce 150 MB. Ranks that gossip by
    themselves move 200 MB in most rounds."""
    advice = plan(job(4, 2), links(4, GIGABIT))
    assert advice.chosen.name == "one-peer exponential of hosts"
    assert advice.op == horon.Gossip("osgp", "one_peer_exponential", hierarchical=True)
    inside = 100 * MB / 5e9
    once = 100 * MB / GIGABIT
    found = by_name(advice)
    assert advice.chosen.step_s == pytest.approx(2e-4 + inside + once)
    assert found[ALLREDUCE].step_s == pytest.approx(3e-4 + inside + 1.5 * once)
    # Of three rounds one stays on the host for one of each two ranks.
    assert found["one-peer exponential"].step_s == pytest.approx(2e-4 + (1 + 2 + 2) / 3 * once)
    assert found["ring"].step_s == pytest.approx(2e-4 + 2 * once)


@pytest.mark.parametrize("hosts, name, rounds", [
    (4, "one-peer exponential", 2), (8, "one-peer exponential", 3), (6, "base, one peer", 4),
])
def test_the_graph_that_agrees_soonest_is_taken(hosts, name, rounds):
    advice = plan(job(hosts, 1), links(hosts, GIGABIT))
    assert (advice.chosen.name, advice.chosen.rounds) == (name, rounds)
    assert advice.chosen.contraction == pytest.approx(1e-3 ** (1 / rounds))
    graph = advice.op.graph(hosts)
    assert isinstance(graph, Topology) and graph.contraction(rounds=rounds) <= 1e-3
    slower = by_name(advice)["static exponential"]
    assert slower.step_s > 1.5 * advice.chosen.step_s


def test_whose_host_a_rank_is_on():
    """[local rank, number across hosts, ranks of the host, seconds] of each rank, as gathered."""
    pytest.importorskip("torch")
    from horon.torch.link_probe import _hosts

    one_and_two = [[0, 0, 1, 0.1], [0, 1, 2, 0.1], [1, 0, 2, 0.1]]
    assert _hosts(one_and_two) == [0, 1, 1]
    assert _hosts([[0, 0, 2, 0.1], [0, 1, 2, 0.1], [1, 0, 2, 0.1], [1, 1, 2, 0.1]]) == [0, 1, 0, 1]


def test_two_hosts_have_nothing_to_gain():
    assert plan(job(2, 1), links(2, GIGABIT)).chosen.name == ALLREDUCE


def test_a_transfer_that_computing_hides_is_free():
    long = plan(job(8, 1, compute=2.0), links(8, GIGABIT))
    assert long.chosen.name == ALLREDUCE and long.chosen.step_s == 2.0


def test_a_slow_host_is_not_waited_for():
    slow = dataclasses.replace(job(4, 1, bytes=1 * MB), compute=(0.05, 0.05, 0.25, 0.05))
    advice = plan(slow, links(4, GIGABIT))
    assert advice.chosen.name == ASYNCHRONOUS and advice.op == horon.Gossip("adpsgd")
    assert advice.op.algorithm == "adpsgd"
    assert advice.chosen.step_s == pytest.approx(0.05) and by_name(advice)["ring"].step_s == 0.25
    assert plan(job(4, 1, bytes=1 * MB), links(4, GIGABIT)).chosen.name == ALLREDUCE


def test_a_slow_link_of_one_host_is_not_waited_for():
    outside = (GIGABIT, GIGABIT, GIGABIT / 10, GIGABIT)
    found = dataclasses.replace(links(4, GIGABIT), outside=outside)
    assert plan(job(4, 1, bytes=25 * MB), found).chosen.name == ASYNCHRONOUS
    everywhere = plan(job(4, 1, bytes=25 * MB), links(4, GIGABIT / 10))
    assert everywhere.chosen.name == "one-peer exponential"


def test_a_rank_that_is_left_over_is_no_gain():
    """Of three ranks one has no partner: an exchange takes the other two as long as ever."""
    advice = plan(job(3, 1, bytes=25 * MB), links(3, GIGABIT))
    assert advice.chosen.name == "base, one peer"
    pairs = by_name(advice)[ASYNCHRONOUS]
    assert pairs.exchange_s == pytest.approx(advice.chosen.exchange_s)


def test_who_waits_for_nobody_has_fewer_averages_than_steps():
    """An exchange takes 214 ms: a step of 50 ms has a quarter of one. One of 1 s has one."""
    short = by_name(plan(job(4, 1, bytes=25 * MB), links(4, GIGABIT)))[ASYNCHRONOUS]
    assert short.step_s == 0.05
    assert short.exchange_s == pytest.approx(2e-4 + 25 * MB / GIGABIT)
    long = by_name(plan(job(4, 1, bytes=25 * MB, compute=1), links(4, GIGABIT)))[ASYNCHRONOUS]
    assert long.rounds == 2 and short.rounds == math.ceil(2 * short.exchange_s / 0.05)
    assert short.contraction == pytest.approx(1e-3 ** (1 / short.rounds))


def test_taking_in_an_exchange_is_not_hidden():
    """Three passes over the parameters; an allreduce of gradients has none."""
    model = job(4, 1, bytes=25 * MB)
    quick = by_name(plan(model, links(4, GIGABIT)))
    slow = by_name(plan(model, dataclasses.replace(links(4, GIGABIT), memory=5e9)))
    for name in ("one-peer exponential", "ring", ASYNCHRONOUS):
        assert slow[name].step_s == pytest.approx(quick[name].step_s + 3 * 25 * MB / 5e9)
    assert slow[ALLREDUCE] == quick[ALLREDUCE]


def test_hosts_with_unequal_ranks():
    uneven = Job((0, 0, 0, 1, 2), int(100 * MB), (0.01,) * 5)
    advice = plan(uneven, links(3, GIGABIT))
    assert not any("of hosts" in candidate.name for candidate in advice.candidates)
    assert advice.op.graph(5).n == 5


def test_what_it_says():
    advice = plan(job(4, 2), links(4, GIGABIT))
    text = str(advice)
    situation, _, choice, _, *table = text.splitlines()
    assert "8 ranks on 4 hosts, 100 MB of parameters" in situation and "117 MB/s" in situation
    gain = advice.candidates[0].step_s / advice.chosen.step_s
    assert f"in place of 1.3 s, {gain:.1f} times as fast" in choice
    assert choice.startswith(f"Advice: op={advice.chosen.spelled}. ")
    assert eval(advice.chosen.spelled, {"hvd": horon}) == advice.op
    assert len(table) == 1 + len(advice.candidates)
    assert [line for line in table if line.startswith(">")] == [
        line for line in table if advice.chosen.name in line]


def test_auto_chooses_all_or_a_graph():
    assert horon.Gossip(topology="auto").advised
    assert not horon.Gossip("sgp", topology="auto").advised and not horon.Gossip().advised
    with pytest.raises(ValueError, match="chooses all"):
        horon.Gossip(topology="auto", sync_freq=1)


# --- horonrun --advise: on this machine, and on hosts with shaped links ---------------------------


def test_advise_in_place_of_a_command():
    """A step of 5 s hides everything."""
    done = subprocess.run(horonrun("-np", "2", "--advise", "4e6,5"), capture_output=True, text=True,
                          timeout=120, check=True)
    assert "2 ranks on 1 host, 4 MB of parameters" in done.stdout
    assert done.stdout.count("Advice: op=hvd.Average. ") == 1 and done.stderr == "", done


def advised(world, hosts, model, **variables):
    """(what it says, bytes a second between hosts, of the slowest link)."""
    names = ",".join(f"h{i + 1}" for i in range(hosts))
    done = world(hosts, *horonrun("-H", names, "--advise", model), **variables)
    found = re.search(r"Between hosts it is (\S+) MB/s, on the slowest link (\S+) MB/s", done.out)
    assert done.code == 0 and found, done.all
    assert done.out.count("Advice: op=") == 1, done.all
    return done.out, float(found[1]) * MB, float(found[2]) * MB


@in_full_tier
def test_slow_links_are_measured(world):
    said, rate, slowest = advised(world, 4, "25e6,0.01", WORLD_RATE="200mbit")
    assert 0.5 * 25 * MB < slowest <= rate < 1.1 * 25 * MB, said
    assert "op=hvd.Gossip(algorithm='osgp', topology='one_peer_exponential')" in said


@in_full_tier
def test_one_slow_link_is_found(world):
    """Its neighbors see it, too; they are not taken for it."""
    said, rate, slowest = advised(world, 5, "25e6,0.01", WORLD_RATE="400mbit",
                                  WORLD_RATE_3="20mbit")
    assert slowest < 1.1 * 2.5 * MB and rate > 0.4 * 50 * MB, said
    assert "op=hvd.Gossip(algorithm='adpsgd')" in said
