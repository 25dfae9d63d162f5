"""The benchmark's goals for figures that are made up, what it says of rounds that are missing,
which rounds it makes, and what memory it finds."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")  # the loops that share a module with the parent import it
ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "test" / "bench"
sys.path.append(str(BENCH))

import goals  # noqa: E402
import groups  # noqa: E402
import interleaved  # noqa: E402
import machine  # noqa: E402
import nodes_bench  # noqa: E402
import quoted  # noqa: E402
import report  # noqa: E402
import stragglers_bench  # noqa: E402
from workloads import Workload  # noqa: E402

US, MS = 1e-6, 1e-3


def row_of(name, np=2, regime="NEAR", rounds=30, **seconds):
    """All rounds alike. Of a library its seconds, or those of each round."""
    row = report.Row(Workload(name, ((1,),)), "float32", np)
    for library, times in seconds.items():
        times = times if isinstance(times, list) else [times] * rounds
        row.rounds += [report.Round(library.replace("_", "-"), number, regime, [time])
                       for number, time in enumerate(times)]
    return row


def reached(*rows, **about):
    """By work, regime and goal."""
    return {(work, regime.partition(",")[0], goal): verdict
            for work, regime, goal, _, verdict in goals.of(list(rows), **about)}


FASTEST = {"horon": 1.0, "horon_shared": 1.0, "horon_views": 1.0, "streamed": 0.9, "staged": 2.0,
           "in_place": 0.9, "mpi": 4.0, "mpi_other": 4.0, "gloo": 9.0, "gloo_buckets": 3.0}
BEST, SHARED = "at most 1.15 of the best loop", "shared tensors: at most 1.2 of the in-place loop"
VIEWS = "gradient_as_bucket_view: at most 1.2 of the in-place loop"
NOT_SLOWER = "not slower than Open MPI"
# Name, ranks, figures; then each goal, with a figure that misses it.
CASES = [
    ("4 B", 2, {"horon": 10 * US, "gloo": 160 * US},
     {"at most 10 us": {"horon": 10.1 * US}, "15 times faster than gloo": {"gloo": 149 * US}}),
    ("64 KiB", 2, {"horon": 1.0, "mpi": 1.0}, {NOT_SLOWER: {"mpi": 0.95}}),
    ("1 MiB", 2, {"horon": 1.0, "horon_shared": 0.19, "mpi": 1.0},
     {NOT_SLOWER: {"mpi": 0.95},
      "shared tensors: 5 times faster than Open MPI": {"horon_shared": 0.201}}),
    ("64 MiB", 2, FASTEST,
     {BEST: {"streamed": 0.86}, "3 times faster than Open MPI": {"mpi": 2.9},
      SHARED: {"in_place": 0.83}}),
    *((name, 2, FASTEST,
       {BEST: {"staged": 0.86}, NOT_SLOWER: {"mpi": 0.95},
        "2.5 times faster than gloo": {"gloo_buckets": 2.4}, SHARED: {"horon_shared": 1.1},
        VIEWS: {"horon_views": 1.1}})
      for name in ("ResNet-50", "BERT-base")),
    ("1,000 x 1 KiB", 2,
     {"horon": 2.2 * MS, "horon_registered": 1.3 * MS, "horon_grouped": 1.2 * MS},
     {"registered or grouped: at most 1.2 ms": {"horon_grouped": 1.21 * MS},
      "by name: at most 2.2 ms": {"horon": 2.21 * MS}}),
    ("broadcast 64 MiB", 2, {"horon": 10 * MS, "gloo": 11 * MS, "mpi": 9.9 * MS},
     {"faster than gloo": {"gloo": 9.9 * MS}, NOT_SLOWER: {"mpi": 9.5 * MS},
      "faster than Horovod, quoted: 13.7 ms":
      {"horon": 13.8 * MS, "gloo": 14 * MS, "mpi": 14 * MS}}),
    ("4 B", 4, {"horon": 60 * US}, {"at most 60 us": {"horon": 61 * US}}),
    *(("100 x 4 B, one by one", np, {"horon": limit * MS, "gloo": 15.1 * limit * MS},
       {f"at most {limit} ms": {"horon": 1.001 * limit * MS}, faster: {"gloo": gloo * MS}})
      for np, limit, faster, gloo in ((2, 1, "15 times faster than gloo", 14.9),
                                      (4, 6, "faster than gloo", 5.9))),
    ("64 MiB", 4, {"horon": 100 * MS, "gloo": 101 * MS, "mpi": 101 * MS},
     {"faster than gloo": {"gloo": 99 * MS}, "faster than Open MPI": {"mpi": 99 * MS},
      "faster than Horovod, quoted: 101 ms; 114 ms":
      {"horon": 102 * MS, "gloo": 103 * MS, "mpi": 103 * MS}}),
]


@pytest.mark.parametrize("name, np, seconds, missed", CASES,
                         ids=[f"{name}, {np} ranks" for name, np, _, _ in CASES])
def test_goals_that_are_reached_and_each_missed_alone(name, np, seconds, missed):
    work = name if np == 2 else f"{name}, {np} ranks"
    every = {(work, "NEAR", goal): "yes" for goal in missed}
    assert reached(row_of(name, np, **seconds)) == every
    for goal, changed in missed.items():
        found = reached(row_of(name, np, **(seconds | changed)))
        assert found == every | {(work, "NEAR", goal): "**no**"}


def test_every_row_of_the_benchmark_with_a_goal_is_judged_here():
    tried = {(name, np) for name, np, _, _ in CASES}
    alike = {(f"{kind} 64 MiB", 2) for kind in ("allgather", "alltoall", "reducescatter")}
    assert set(goals.GOALS) == tried | alike | {("ResNet-50", 4)}


@pytest.mark.parametrize("slow, rounds, verdict", [
    (0, 29, "too few rounds"), (29, 29, "too few rounds"),
    (9, 30, "yes"), (10, 30, "**no**"),  # the interval of 30 begins at the tenth
])
def test_not_slower_is_what_the_interval_says(slow, rounds, verdict):
    times = [0.9] * slow + [1.0] * (rounds - slow)
    row = row_of("64 KiB", horon=[1.0] * rounds, mpi=times)
    assert reached(row)["64 KiB", "NEAR", NOT_SLOWER] == verdict


def test_a_line_says_regime_rounds_ratio_and_interval():
    row = row_of("64 KiB", horon=1.0, mpi=[1.0] * 9 + [2.0] * 21)
    assert goals.of([row]) == [["64 KiB", "NEAR, 30", NOT_SLOWER,
                                "2.00 (2.00-2.00) times as fast (mpi)", "yes"]]
    assert goals.table(goals.of([row])).splitlines()[2] == (
        "| 64 KiB | NEAR, 30 | not slower than Open MPI | 2.00 (2.00-2.00) times as fast (mpi) "
        "| yes |")


def test_the_faster_of_two_mpis_counts():
    for mpi, other, verdict in ((4.0, 0.5, "**no**"), (0.5, 4.0, "**no**"), (4.0, 4.0, "yes")):
        for np, goal in ((2, "3 times faster than Open MPI"), (4, "faster than Open MPI")):
            row = row_of("64 MiB", np, **(FASTEST | {"mpi": mpi, "mpi_other": other}))
            work = "64 MiB" if np == 2 else "64 MiB, 4 ranks"
            assert reached(row)[work, "NEAR", goal] == verdict
        row = row_of("64 KiB", horon=1.0, mpi=mpi, mpi_other=other)
        assert reached(row)["64 KiB", "NEAR", NOT_SLOWER] == verdict


def test_a_second_mpi_is_the_next_of_path_with_a_library(tmp_path, monkeypatch):
    """Not the first one under another name, and not an mpirun alone."""
    for name in ("first", "alone", "second"):
        program = tmp_path / name / "bin" / "mpirun"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    (tmp_path / "link").symlink_to(tmp_path / "first" / "bin")
    for name, folder in (("first", "lib"), ("second", "lib/x86_64-linux-gnu")):
        (tmp_path / name / folder).mkdir(parents=True)
        for end in ("40", "40.30.4"):
            (tmp_path / name / folder / f"libmpi.so.{end}").touch()
    monkeypatch.setattr(groups, "mpirun", lambda: str(tmp_path / "first" / "bin" / "mpirun"))
    path = [str(tmp_path / at) for at in ("no", "first/bin", "link", "alone/bin", "second/bin")]
    monkeypatch.setenv("PATH", ":".join(path))
    library = str(tmp_path / "second" / "lib" / "x86_64-linux-gnu" / "libmpi.so.40")
    assert groups.other_mpi() == (f"{path[-1]}/mpirun", {"MPI4PY_LIBMPI": library})
    monkeypatch.setenv("PATH", ":".join(path[:-1]))
    with pytest.raises(groups.Missing, match="no second MPI"):
        groups.other_mpi()


def test_regimes_are_judged_apart():
    row = row_of("64 MiB", **FASTEST)
    row.rounds += row_of("64 MiB", regime="FAR", **(FASTEST | {"streamed": 0.5})).rounds
    row.rounds += row_of("64 MiB", regime="MIXED", **FASTEST).rounds
    assert reached(row) == {
        ("64 MiB", "NEAR", BEST): "yes", ("64 MiB", "FAR", BEST): "**no**",
        ("64 MiB", "NEAR", SHARED): "yes", ("64 MiB", "FAR", SHARED): "yes",
        ("64 MiB", "NEAR", "3 times faster than Open MPI"): "yes"}
    mixed = reached(row_of("64 KiB", regime="MIXED", horon=1.0, mpi=1.0))
    assert mixed == {("64 KiB", "MIXED", NOT_SLOWER): "yes"}


def test_a_peer_that_is_missing_is_named():
    row = row_of("4 B", horon=10 * US)
    peer = "15 times faster than gloo"
    assert ["4 B", "NEAR, 30", peer, "missing: gloo", "-"] in goals.of([row], {"gloo": "why"})
    not_asked = ["4 B", "NEAR, 30", peer, "not measured: gloo, gloo-buckets, gloo-views", "-"]
    assert not_asked in goals.of([row], {"mpi": "why"})
    nobody = goals.of([row_of("4 B", gloo=1.0)], {"horon": "why"})
    assert [line[3:] for line in nobody] == [["missing: horon", "-"]] * 2


def test_goals_about_libraries_that_nobody_asked_for_are_left_out():
    row = row_of("1 MiB", horon=1.0, mpi=2.0)
    assert [line[2] for line in goals.of([row])] == [
        NOT_SLOWER, "shared tensors: 5 times faster than Open MPI"]
    alone = ["horon", "mpi", "mpi-other"]
    assert [line[2] for line in goals.of([row], asked=alone)] == [NOT_SLOWER]
    # One that was asked for and is not there stays.
    gone = goals.of([row_of("1 MiB", horon=1.0)], {"mpi": "why"}, asked=alone)
    assert [line[3] for line in gone] == ["missing: mpi"]


def test_a_row_without_rounds_is_in_the_table():
    lines = goals.of([row_of("64 KiB")], regime="FAR")
    assert lines == [["64 KiB", "FAR, 0", NOT_SLOWER, "not measured", "-"]]


def test_a_note_is_added_and_other_types_have_no_goals():
    row = row_of("64 KiB", horon=1.0, mpi=1.0)
    assert goals.of([row], note=", without CMA")[0][0] == "64 KiB, without CMA"
    row.dtype = "float64"
    assert goals.of([row]) == []


@pytest.mark.parametrize("libraries, no_cma, note", [
    (["horon", "mpi"], False, ", beside Open MPI alone"),
    (["horon", "horon-shared", "mpi", "mpi-other"], False, ", beside Open MPI alone"),
    (["horon", "horon-shared", "mpi"], True, ", without CMA"),
    (["horon", "gloo-views"], False, ", beside gloo alone"),
    (["horon", "horon-shared"], False, ""), (["horon", "mpi", "gloo"], False, "")])
def test_what_tells_a_runs_goals_from_anothers(libraries, no_cma, note):
    import allreduce_bench

    options = argparse.Namespace(libraries=libraries, no_cma=no_cma)
    assert allreduce_bench.note(options) == note


@pytest.mark.parametrize("half, verdict", [(0.6, "yes"), (0.61, "**no**")])
def test_sets_in_16_bits(half, verdict):
    """Over the same round's float32, whatever other rounds took."""
    import halves_bench

    whole = [1.0, 5.0] * 15
    row = row_of("ResNet-50", horon=whole)
    row.rounds += [report.Round("horon, float16", number, "NEAR", [half * time])
                   for number, time in enumerate(whole)]
    table = halves_bench.Table(halves_bench.SETS, halves_bench.SEATS, halves_bench.COMPARISONS)
    lines = table.goals_of([row], {"horon-shared": "why"}, None)
    ratio = report.three_digits(half)
    assert lines[0] == ["ResNet-50", "NEAR, 30", "horon, float16: at most 0.6 of horon",
                        f"{ratio} ({ratio}-{ratio})", verdict]
    assert lines[2][3] == "missing: horon-shared" and len(lines) == 8
    assert f"| {ratio} ({ratio}-{ratio}) | 0.6 | {verdict} |" in table.markdown([row], {})


@pytest.mark.parametrize("share, pairs, verdict", [
    (0.87, 30, "yes"), (0.86, 30, "**no**"), (0.95, 29, "too few rounds"), (0, 0, "-")])
def test_training(share, pairs, verdict):
    line = goals.training("Horon", "NEAR", report.Ratio([share] * pairs))
    assert line[-1] == verdict and line[1] == f"NEAR, {pairs}"


@pytest.mark.parametrize("regimes, wanted, regime, pairs, all_pairs", [
    (["NEAR"], None, "NEAR", 2, 2),
    (["FAR", "FAR", "NEAR"], None, "NEAR", 2, 4),
    (["NEAR", "FAR"] * 9, None, "MIXED", 8, 8),
    (["FAR", "FAR", *["NEAR", "FAR"] * 9], None, "FAR", 1, 8),
    # Before a pair it is waited for, after it only looked at.
    (["NEAR", "FAR", "NEAR", "FAR", "FAR", "FAR"], "FAR", "FAR", 2, 2),
    (["FAR", "FAR", "NEAR"], "FAR", "FAR", 1, 1),
    (["NEAR"], "FAR", "FAR", 0, 0)])
def test_training_goes_on_until_one_regime_has_its_pairs(monkeypatch, regimes, wanted, regime,
                                                         pairs, all_pairs):
    import training_bench

    regimes = list(regimes)
    monkeypatch.setattr(interleaved, "BETWEEN_LOOKS_S", 0)
    monkeypatch.setattr(training_bench, "agreed", lambda value: value)
    pingpong = interleaved.PingPong("none", None)
    pingpong.ask = lambda: (regimes.pop(0) if len(regimes) > 1 else regimes[0], None)
    job = argparse.Namespace(steps=lambda count: float(count))
    options = argparse.Namespace(pairs=2, most_pairs=8, steps=3, regime=wanted, patience=0.05)
    kept = training_bench.Kept(job, job, options, pingpong)
    assert (kept.regime, len(kept.share.values), len(kept.ratios)) == (regime, pairs, all_pairs)
    assert len(kept.cells()) == 3


@pytest.mark.parametrize("core, switches, verdicts", [
    (0.005, 1.0, ["yes", "yes"]), (0.0051, 0, ["**no**", "yes"]), (0, 1.1, ["yes", "**no**"])])
def test_a_runtime_that_waits(core, switches, verdicts):
    assert [line[-1] for line in goals.idle("sleeps", core, switches, 60)] == verdicts


def test_the_best_of_what_is_quoted():
    assert quoted.best("5.8 ms; 5.3-8.5 ms") == pytest.approx(5.3 * MS)
    assert quoted.best("1071 us; 332 us") == pytest.approx(332 * US)


def test_several_runs_make_one_table(tmp_path):
    line = ["4 B", "NEAR, 30", "at most 10 us", "6.5 us", "yes"]
    for name, missing in (("one", {"gloo": "no Python module torch"}), ("two", {})):
        about = {"processor": name, "rounds": "30 NEAR"}
        (tmp_path / name).write_text(json.dumps(
            {"machine": about, "goals": [[name, *line[1:]]], "missing": missing}))
    done = subprocess.run([sys.executable, BENCH / "goals.py", *map(tmp_path.joinpath, (
        "one", "two", "three"))], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == """\
- processor: one

| work | regime, rounds | goal | measured | reached |
| --- | --- | --- | --- | --- |
| one | NEAR, 30 | at most 10 us | 6.5 us | yes |
| two | NEAR, 30 | at most 10 us | 6.5 us | yes |

Missing: gloo (no Python module torch).
Missing: three (the run left no figures).
"""


def test_the_machine_is_described():
    about = machine.about()
    assert {"date", "processor", "cores", "memory", "kernel", "Python", "PyTorch"} <= set(about)
    assert all(about.values()) and "\n- kernel: Linux" in machine.lines(about)


def bench_of(monkeypatch, tmp_path, regimes, rounds=4, regime=None, patience=0.05,
             most_rounds=None):
    """A benchmark without ranks, on a machine whose regimes come in this order, the last for
    ever. `who`: who has measured, one after the other, and who has given memory back."""
    regimes = list(regimes)
    monkeypatch.setattr(interleaved, "BETWEEN_LOOKS_S", 0)
    measured = []
    monkeypatch.setattr(interleaved, "Group", lambda library, *_: argparse.Namespace(
        note="", measure=lambda *_: measured.append(library) or [0.1],
        forget=lambda: measured.append(f"without {library}")))
    options = argparse.Namespace(rounds=rounds, regime=regime, patience=patience, seconds=0.2,
                                 most_rounds=most_rounds, most_iterations=3,
                                 launcher="horonrun", pingpong="none")
    bench = interleaved.Bench(options, {name: interleaved.Seat(name, 2, "float32")
                                        for name in ("horon", "gloo")}, tmp_path)
    bench.pingpong.ask = lambda: (regimes.pop(0) if len(regimes) > 1 else regimes[0], None)
    bench.who = measured
    return bench


ONE = Workload("4 B", ((1,),))


# Two libraries: of the first round both change, then one each, then none.
CHANGING = ["NEAR", "FAR", "NEAR", "FAR", "FAR", "NEAR"]


@pytest.mark.parametrize("regimes, most, counts", [
    (["NEAR"], None, "4 NEAR"),
    (CHANGING, None, "4 NEAR, 3 MIXED, 1 FAR"),
    (CHANGING, 16, "5 NEAR, 3 MIXED, 1 FAR"),
    (["NEAR", "FAR"] * 20, None, "6 MIXED"),
    (["NEAR", "FAR"] * 20, 16, "16 MIXED"),
])
def test_rounds_go_on_until_one_regime_has_all(monkeypatch, tmp_path, regimes, most, counts):
    row = bench_of(monkeypatch, tmp_path, regimes, most_rounds=most).run(ONE)
    found = set(report.rounds_by_regime([row]).split(", "))
    assert found == set(counts.split(", "))


def test_only_times_of_one_regime_are_compared(monkeypatch, tmp_path):
    row = bench_of(monkeypatch, tmp_path, CHANGING).run(ONE)
    assert [(r.round, r.library) for r in row.within("NEAR").rounds[:3]] == [
        (2, "gloo"), (3, "gloo"), (3, "horon")]
    assert len(row.within("NEAR").ratio("gloo", "horon").values) == 3
    assert row.within("FAR").ratio("gloo", "horon") is None


def test_who_does_not_take_part(monkeypatch, tmp_path):
    row = bench_of(monkeypatch, tmp_path, ["FAR"]).run(ONE, without=("gloo",))
    assert {r.library for r in row.rounds} == {"horon"}


def test_all_give_memory_back_before_any_has_the_next_rows(monkeypatch, tmp_path):
    bench = bench_of(monkeypatch, tmp_path, ["NEAR"])
    bench.run(ONE)
    del bench.who[:]

    def killed():
        raise groups.Missing("killed")

    bench.groups["gloo"].forget = killed
    row = bench.run(ONE)
    assert bench.who[:2] == ["without horon", "horon"]
    assert bench.missing == {"gloo": "killed"} and {r.library for r in row.rounds} == {"horon"}


def test_a_regime_that_never_comes_is_given_up_after_the_first_row(monkeypatch, tmp_path):
    bench = bench_of(monkeypatch, tmp_path, ["NEAR"], regime="FAR")
    rows = [bench.run(Workload(name, ((1,),))) for name in ("4 B", "64 KiB")]
    assert not any(row.rounds for row in rows)
    assert bench.short == {"4 B": "0 of 4 rounds", "64 KiB": "0 of 4 rounds, not tried"}
    assert "Not got in FAR: 4 B (0 of 4 rounds).\n" in report.named({}, bench.short, "FAR")


def test_a_regime_that_goes_is_waited_for_in_the_next_row(monkeypatch, tmp_path):
    bench = bench_of(monkeypatch, tmp_path, [*["FAR"] * 6, "NEAR"], regime="FAR")
    assert [r.round for r in bench.run(ONE).rounds] == [0, 0, 1, 1]
    assert not bench.hopeless and bench.short == {"4 B": "2 of 4 rounds"}


def test_who_was_measured_while_the_regime_changed_is_measured_again(monkeypatch, tmp_path):
    bench = bench_of(monkeypatch, tmp_path, ["FAR", "FAR", "NEAR", "NEAR", "FAR"], regime="FAR",
                     patience=20)
    row = bench.run(ONE)
    assert bench.who[4:] == ["horon", "gloo", "gloo", "gloo", "horon", "horon", "gloo", "gloo",
                             "horon"]
    assert {r.regime for r in row.rounds} == {"FAR"} and len(row.rounds) == 8 and not bench.short


def nodes_goals(layout, **times):
    """Of a row of 25 MB whose bounds are 1 s; of a library its seconds in each of seven rounds."""
    row = row_of("25000000 B", rounds=7, **times)
    found = {"layout": layout, "work": row.workload.name, "bounds": dict.fromkeys(times, 1.0),
             "seconds": {library: row.median(library) for library in times}}
    return [line[2:] for line in nodes_bench.goals_of(found, row, small=False)]


def test_goals_between_hosts_and_each_missed():
    assert nodes_goals("4x1", horon=1.1, gossip=1.11, gloo=1.0) == [
        ["horon: at most 1.1 of the bound", "1.10 (1.10-1.10)", "yes"],
        ["gossip: at most 1.1 of the bound", "1.11 (1.11-1.11)", "**no**"]]
    assert nodes_goals("8x1", horon=[1.16] * 4 + [1.0] * 3, gossip=0.66, gloo=1.0) == [
        ["horon: at most 1.15 of the bound", "1.16 (1.00-1.16)", "**no**"],
        ["gossip: at most 1.15 of the bound", "0.660 (0.660-0.660)", "yes"],
        ["gossip: at most 0.65 of the fastest allreduce (gloo)", "0.660 (0.660-0.660)", "**no**"]]
    assert nodes_goals("4x2", horon=9.0, gossip=1.1) == [
        ["gossip: at most 1.1 of the bound", "1.10 (1.10-1.10)", "yes"]]
    assert nodes_goals("8x1", gossip=1.0) == [
        ["gossip: at most 1.15 of the bound", "1.00 (1.00-1.00)", "yes"]]


@pytest.mark.parametrize("size, goals_of_it", [(4, []), (1024, [["1.40 (1.40-1.40)", "**no**"]])])
def test_small_messages_between_hosts_but_that_which_shows_the_latency(size, goals_of_it):
    row = row_of("small", rounds=7, horon=2.8, mpi=2.8)
    row.workload = Workload("small", ((size // 4,),) * 2)
    found = {"layout": "2x1", "work": "small", "bounds": {"horon": 1.0, "mpi": 1.0},
             "seconds": {"horon": 1.4, "mpi": 1.4}}
    lines = nodes_bench.goals_of(found, row, small=True)
    assert [line[3:] for line in lines] == goals_of_it


def test_goals_of_stragglers():
    def row(scene, algorithm, others=1.0, hidden=None):
        return {"scene": scene, "algorithm": algorithm, "others": others, "hidden": hidden}

    def reached(*rows):
        return [met for _, met in stragglers_bench.goals_of(list(rows))]

    assert reached(row("alike", "osgp", hidden=0.95), row("alike", "osgp", hidden=0.89)) == [
        True, False]
    for scene, algorithm in (("slow link", "adpsgd"), ("slow link", "asgp"),
                             ("slow host", "adpsgd"), ("slow host", "asgp"),
                             ("late once", "osgp")):
        assert reached(row(scene, algorithm, 0.9), row(scene, algorithm, 0.899)) == [True, False]
    # Who waits for the slow one has no goal to reach.
    assert not reached(row("slow link", "allreduce", 0.2), row("slow host", "osgp", 0.2),
                       row("late once", "adpsgd", 0.5), row("alike", "asgp", 0.5, hidden=0.1))


def test_the_segment_does_not_grow_with_the_model():
    done = subprocess.run(
        [sys.executable, "-m", "horon.launcher", "-np", "2", "--no-prefix",
         sys.executable, str(BENCH / "memory_bench.py"), "--most", str(16 << 20)],
        capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    cells = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
    moved, touched = ({row[0]: float(row[at].split()[0]) for row in cells} for at in (1, 2))
    assert moved["BERT-base"] > 4 * moved["ResNet-50"] > 380
    assert 0.1 < touched["ResNet-50"] <= touched["BERT-base"] < touched["ResNet-50"] + 1
    gained = touched["ResNet-50 in shared tensors"] - touched["those given back"]
    assert abs(gained - moved["ResNet-50"]) < 4  # 161 tensors end within pages
