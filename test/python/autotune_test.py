"""Autotuning: a job that is tuned, what its log says, and the file that replays."""

import csv
import re
from itertools import groupby

import pytest
from conftest import in_full_tier
from horon.launcher import tuning

COLUMNS = ("sample,seconds,setting,against,fusion_bytes,chunk_bytes,slice_bytes,hierarchical,steps,"
           "step_seconds,bytes_per_second,verdict").split(",")
PARTS = COLUMNS[4:8]
STEPS, MOST_SAMPLES = 2, 60
STEP_BYTES = 4 * 5 * (1 + 3 + 17 + 64 + 257 + 1000 + 4096 + 30_011) + 4  # of bodies/autotune.py
FASTER = 0.98
ROUNDS, LAST_ROUNDS = 3, 6


def job(launch, folder, np, log, most=MOST_SAMPLES, **where):
    """Runs it to its end; counters by rank and name."""
    variables = {
        **where.pop("env", {}),
        "HORON_AUTOTUNE": "1",
        "HORON_AUTOTUNE_LOG": str(folder / log),
        "HORON_AUTOTUNE_FILE": str(folder / "tuned"),
        "HORON_AUTOTUNE_WARMUP_SAMPLES": "1",
        "HORON_AUTOTUNE_STEPS_PER_SAMPLE": str(STEPS),
        "HORON_AUTOTUNE_MAX_SAMPLES": str(most),
    }
    out = launch(np, "autotune", env=variables, **where)
    return {(int(rank), name): int(value) for rank, name, value in
            re.findall(r"^counter (\d+) (\S+) (\d+)$", out, re.MULTILINE)}


def lines_of(path, most=MOST_SAMPLES):
    """Whole lines, one a sample, in time's order; a setting's number always means the same one. The
    last, which says what was chosen, is left out."""
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        assert reader.fieldnames == COLUMNS
        *lines, last = reader
    assert last["verdict"] == "chosen" and last["steps"] == "0", last
    settings = {}
    for number, line in enumerate(lines, start=1):
        assert None not in line and None not in line.values(), line
        assert int(line["sample"]) == number and int(line["steps"]) == STEPS, line
        parts = tuple(int(line[name]) for name in PARTS)
        assert settings.setdefault(line["setting"], parts) == parts, line
        moved = float(line["step_seconds"]) * float(line["bytes_per_second"])
        assert moved == pytest.approx(STEP_BYTES, rel=1e-4), line
    times = [float(line["seconds"]) for line in lines]
    assert times == sorted(times) and times[-1] > 0
    assert list(settings) == [str(number) for number in range(len(settings))]
    assert len(settings) >= 2 and len(set(settings.values())) == len(settings)
    assert len(lines) <= most
    return lines


def comparisons(lines):
    """(best, new, ratios of its rounds, verdict) of each."""
    found, group = [], []
    for line in lines:
        group.append(line)
        if line["verdict"]:
            rounds = [group[at : at + 4] for at in range(0, len(group), 4)]
            best, new = group[0]["setting"], group[1]["setting"]
            assert best != new and {one["against"] for one in group} == {best}
            for four in rounds:
                assert [one["setting"] for one in four] == [best, new, new, best]
            seconds = [[float(one["step_seconds"]) for one in four] for four in rounds]
            ratios = [(b + c) / (a + d) for a, b, c, d in seconds]
            found.append((best, new, ratios, line["verdict"]))
            group = []
    assert not group, "a comparison without a verdict"
    return found


def expect_method(found):
    """Who seems faster is measured again; the winner meets the start again. Which one stays."""
    best = "0"
    for old, new, ratios, verdict in found:
        if len(ratios) == LAST_ROUNDS:
            assert (old, new) == ("0", best) and best != "0" and verdict == found[-1][3]
            return new if verdict == "faster" else old
        assert old == best and all(ratio < FASTER for ratio in ratios[:-1])
        won = len(ratios) == ROUNDS and ratios[-1] < FASTER
        slower = "slower" if ratios[-1] > 1 / FASTER else "no difference"
        assert verdict == ("faster" if won else slower), (ratios, verdict)
        best = new if won else best
    assert best == "0", "the winner has not met the start again"
    return best


def expect_file(folder, lines):
    """It holds the setting that the log's last comparison leaves, as --plot-autotune reads it."""
    text = (folder / "tuned").read_text(encoding="utf-8")
    held = dict(line.split("=") for line in text.splitlines())
    assert list(held) == PARTS
    chosen = str(tuning.read(str(folder / "log.csv")).chosen)
    assert held == next({name: line[name] for name in PARTS} for line in lines
                        if line["setting"] == chosen)
    return chosen


def expect_tuned_and_replayed(launch, folder, np, **where):
    counted = job(launch, folder, np, "log.csv", **where)
    lines = lines_of(folder / "log.csv")
    assert expect_file(folder, lines) == expect_method(comparisons(lines))
    assert counted[0, "autotune.samples"] == len(lines)
    assert counted[0, "autotune.settings"] == len({line["setting"] for line in lines})
    assert counted[1, "executor.buckets"] < counted[1, "executor.tensors"]
    # The next job takes over what the file says: that each tensor goes alone.
    kept = "fusion_bytes=0\nchunk_bytes=32768\nslice_bytes=65536\nhierarchical=1\n"
    (folder / "tuned").write_text(f"# by hand\n{kept}", encoding="utf-8")
    counted = job(launch, folder, np, "second.csv", **where)
    assert counted[0, "autotune.samples"] == counted[0, "autotune.settings"] == 0
    for rank in range(np):
        assert counted[rank, "executor.buckets"] == counted[rank, "executor.tensors"] > 0
    assert (folder / "tuned").read_text(encoding="utf-8") == f"# by hand\n{kept}"
    assert sorted(path.name for path in folder.iterdir()) == ["log.csv", "tuned"]
    return lines


@pytest.mark.parametrize("np, launcher", [(2, "horonrun"), *(
    pytest.param(np, launcher, marks=in_full_tier)
    for np, launcher in ((4, "horonrun"), (2, "mpirun"), (4, "mpirun"))
)])
def test_one_node(launch, tmp_path, needs_mpi, np, launcher):
    lines = expect_tuned_and_replayed(launch, tmp_path, np, launcher=launcher)
    assert {line["slice_bytes"] for line in lines} == {"0"}  # there are none


@in_full_tier
def test_pretended_nodes(launch, tmp_path, needs_mpi):
    """Sums on the way over nodes, whose order of additions is left as it is."""
    lines = expect_tuned_and_replayed(launch, tmp_path, 4, launcher="mpirun",
                                      env={"HORON_LOCAL_SIZE": "2", "HORON_FUSION_THRESHOLD": "0"})
    changed = [name for name, _ in groupby(sorted(
        name for line in lines for name in PARTS if line[name] != lines[0][name]))]
    assert "fusion_bytes" in changed and not {"chunk_bytes", "hierarchical"} & set(changed)


@in_full_tier
def test_hierarchy_is_tried_where_the_order_of_additions_is_free(launch, tmp_path, needs_mpi):
    """Each rank with each, beside inside nodes first; every sum is right while it changes."""
    most = 200  # it comes last, and what is left of the samples has to do for the end
    job(launch, tmp_path, 4, "log.csv", most, launcher="mpirun",
        env={"HORON_LOCAL_SIZE": "2", "HORON_DETERMINISTIC": "0"})
    lines = lines_of(tmp_path / "log.csv", most)
    assert {line["hierarchical"] for line in lines} == {"0", "1"}
    flat = next(line for line in lines if line["hierarchical"] == "0")
    beside = {line["hierarchical"] for line in lines if line["setting"] == flat["against"]}
    assert beside == {"1"} and int(flat["steps"]) == STEPS


@pytest.mark.parametrize(
    "text, variables, words",
    [
        ("fusion_bytes=many\n", {"HORON_AUTOTUNE": "1"},
         "line 1, 'fusion_bytes=many', is no setting"),
        (None, {}, "cannot be read: No such file or directory; with HORON_AUTOTUNE=1 it is made"),
    ],
)
def test_a_file_that_holds_no_setting(launch_script, tmp_path, text, variables, words):
    script, path = tmp_path / "init.py", tmp_path / "tuned"
    script.write_text("import horon.torch as hvd\nhvd.init()\nhvd.barrier()\n")
    if text is not None:
        path.write_text(text)
    out = launch_script(2, script, may_fail=True,
                        env={"HORON_AUTOTUNE_FILE": str(path), **variables})
    assert re.search(rf"HORON_AUTOTUNE_FILE: {path}:? {words}", out), out
