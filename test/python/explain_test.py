"""horonrun --explain: by figures as ranks tell them, and by jobs made to be slow for one reason
each."""

import re
import sys

import pytest
from conftest import _command, in_full_tier, mpirun_path, run_job
from horon.launcher.explain import report, row, take

MS = 1_000_000


def figures(steps=100, tensors=40, size=10_000, buckets=1, waits=1, locked=1.0, **times):
    """Of a rank: `times` are ms a step."""
    made = {f"ns.{part}": int(time * MS * steps) for part, time in times.items()}
    return {**made, "waits": waits * steps, "buckets": buckets * steps, "tensors": tensors * steps,
            "bytes": tensors * size * steps, "locked": int(locked * tensors * steps),
            "distinct": tensors, "distinct_bytes": tensors * size}


def advice(*ranks, threshold=None):
    return report(dict(enumerate(ranks)), len(ranks), threshold)[-1]


EASY = figures(program=50, moving=1)


def test_a_step_is_what_its_bytes_make_it():
    """And the parts of a rank's time are all of it."""
    made = row(2, figures(program=30, queue=1, negotiation=2, others=3, moving=10, hidden_moving=10,
                          hidden_others=5, copying=4, reducing=6))
    assert made.rank == 2 and made.steps == pytest.approx(100, rel=1e-3)
    expected = {"program": 45, "others": 3, "negotiate": 2, "queue": 1,
                "copy": 2, "reduce": 3, "wire": 5}  # half of what moved was waited for
    assert {part: time * 1e3 for part, time in made.parts.items()} == pytest.approx(expected)
    assert made.hidden == 0.5
    assert row(0, {"waits": 7}) is None


def test_packets_add_up_and_nothing_else_is_taken():
    found = {}
    take(found, "explain ns.moving=5 waits=2 ")
    take(found, "explain ns.moving=6 x=y =1 bad=1z Z=3 more=99999999999999999999 w.\x00=1")
    assert found == {"ns.moving": 11, "waits": 2}


def test_the_slow_rank_is_named_with_its_cost():
    lines = report({0: figures(program=30, others=30, moving=2),
                    1: figures(program=58, others=2, moving=2)}, 3)
    assert lines[-1].startswith("45 % of the step waits for rank 1: "), lines
    assert lines[-2] == "nothing is known of rank 2"
    assert re.fullmatch(r" +1 +58 ms +2 ms +0 ms +0 ms +2 ms +0 ms +0 ms +0%", lines[3]), lines


def test_each_kind_has_its_advice():
    assert "nothing stands out: 98 % of the step" in advice(EASY, EASY)
    assert "nothing stands out" in advice(EASY)
    one_by_one = figures(program=5, moving=5, buckets=40, waits=40)
    assert "waits 40 times a step, 50 % of it: submit" in advice(one_by_one, one_by_one)
    small = figures(program=5, moving=5, buckets=40)
    assert "40 messages of 10.0 kB a step take 50 %" in advice(small, small)
    assert "HORON_FUSION_THRESHOLD=0 is too small" in advice(small, small, threshold=0)
    copying = figures(program=5, moving=5, hidden_moving=5, copying=8, size=1 << 20)
    assert "27 % of the step copies gradients" in advice(copying, copying)
    negotiating = figures(program=5, negotiation=5, locked=0.1)
    assert "50 % of the step passes until the ranks have agreed" in advice(negotiating, negotiating)
    in_turn = figures(program=5, others=5)
    assert "wait 50 % of the step for each other, in turn" in advice(in_turn, in_turn)
    bare = figures(program=5, moving=5, size=1 << 20)
    assert "hardly anything of the communication runs beside" in advice(bare, bare)
    wire = figures(program=5, moving=5, hidden_moving=5, size=1 << 20)
    assert "send less" in advice(wire, wire)


def test_without_steps_it_says_so_and_without_figures_nothing():
    assert "no tensor came twice" in report({0: {"waits": 3}, 1: {}}, 2)[0]
    assert report({0: {}, 1: {}}, 2) == []
    assert "nothing stands out" in advice(figures())  # not a moment passed


# Without a framework, whose import takes longer than all the steps.
JOB = """
import ctypes, sys, time, horon
from horon import _core
horon.init()
rank, kind = horon.rank(), sys.argv[1]
slow = rank == horon.size() - 1
memory = [(ctypes.c_float * 500)() for _ in range(60)]
places = [ctypes.addressof(m) for m in memory]
FLOAT32, HOST = 7, -1
requests = [(f"t{i}", "sum", FLOAT32, HOST, (500,), at, at, 1.0, 1.0, 0, None, 0, None, 0)
            for i, at in enumerate(places)]
for step in range(60):
    time.sleep(0.06 * slow + 0.002 if kind == "straggler" else 0)
    if kind == "one by one":
        for request in requests:
            _core.run(request, None)
    else:
        for work in [_core.submit(request, None) for request in requests]:
            work.wait()
horon.shutdown()
print("done", rank, flush=True)
"""


def explained(tmp_path, kind, *options, np=2, launcher="horonrun", **variables):
    script = tmp_path / "job.py"
    script.write_text(JOB)
    command = _command(launcher, np)
    command[len(command) if launcher == "mpirun" else 3:0] = options
    out = run_job([*command, sys.executable, str(script), kind], np, variables)
    return re.findall(r"^horon(?:run)?: (.*)$", out, re.MULTILINE)


@pytest.mark.parametrize("np", [3, *(pytest.param(np, marks=in_full_tier) for np in (2, 4))])
@pytest.mark.parametrize("way", [["--explain"], ["--explain", "--mpi"]], ids=["shm", "mpi"])
def test_a_job_with_a_straggler(tmp_path, needs_mpi, way, np):
    lines = explained(tmp_path, "straggler", *way, np=np)
    assert re.search(r"5\d steps of .*, 60 tensors in", lines[0]), lines
    rows = [line.split()[0] for line in lines[2:np + 3]]
    assert rows == [*map(str, range(np)), "mean"], lines
    assert re.match(rf"\d+ % of the step waits for rank {np - 1}: ", lines[-1]), lines


@pytest.mark.alone
def test_a_job_that_waits_for_each_tensor(tmp_path):
    lines = explained(tmp_path, "one by one", HORON_EXPLAIN="1")
    assert re.match(r"the program waits (5\d|6\d) times a step, \d+ % of it", lines[-1]), lines


@pytest.mark.parametrize("options, variables", [
    (["--fusion-threshold-mb", "0"], {}), ([], {"HOROVOD_FUSION_THRESHOLD": "0"}),
], ids=["option", "horovod"])
def test_a_job_without_fusion(tmp_path, options, variables):
    for _ in range(3):  # where another program slows one of the ranks, that is what is said
        lines = explained(tmp_path, "together", "--explain", *options, **variables)
        assert "60 tensors in 60 messages" in lines[0], lines
        if not re.match(r"\d+ % of the step waits for rank", lines[-1]):
            break
    assert re.match(r"60 messages of 2.0 kB a step take \d+ % of it: HORON_FUSION_THRESHOLD=0",
                    lines[-1]), lines


def test_under_mpirun_rank_0_explains_itself(tmp_path, needs_mpi):
    assert mpirun_path()
    lines = explained(tmp_path, "straggler", launcher="mpirun", HORON_EXPLAIN="1")
    assert len(lines) == 4 and "60 tensors" in lines[0], lines
    assert "the ranks wait" in lines[-1] or "others" in lines[1], lines


def test_nothing_is_said_unless_asked(tmp_path):
    assert explained(tmp_path, "together") == []
