"""Timelines of several nodes, and of a job that is killed. What is in them is checked in
bodies/timeline.py, which surface_test.py runs on one node."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from conftest import only_in_full_tier
from horon.launcher import timeline_end


@pytest.mark.parametrize("np", [2, 4])
def test_pretended_nodes(launch, needs_mpi, np):
    """Two nodes, whose clocks are measured over the control channel."""
    if np > 2:
        only_in_full_tier()
    launch(np, "timeline", launcher="mpirun", env={"HORON_LOCAL_SIZE": str(np // 2)})


KILLED = """
import itertools, os, torch, horon.torch as hvd
hvd.init()
tensors = [torch.ones(20) for _ in range(20)]
print("pid", os.getpid(), flush=True)
size = 0
for step in itertools.count():
    for h in [hvd.allreduce_async_(t, name=f"t{i}") for i, t in enumerate(tensors)]:
        hvd.synchronize(h)
    now = os.path.getsize(os.environ["HORON_TIMELINE"])
    if hvd.rank() == 0 and now > size + 100_000:
        size = now
        print("grown", flush=True)
"""


def has_both(path):
    """Whether both ranks have written something: each writes every 100 ms at most."""
    text = path.read_text(encoding="utf-8")
    return all(text.count(f'"name":"ALLREDUCE","ph":"X","pid":{rank},') > 100 for rank in range(2))


def test_a_killed_job_leaves_a_whole_file(tmp_path):
    """Every rank is killed in the middle, while the file grows."""
    path = tmp_path / "t.json"
    job = subprocess.Popen(
        [sys.executable, "-m", "horon.launcher", "-np", "2", "--no-prefix", sys.executable, "-c",
         KILLED], env={**os.environ, "HORON_TIMELINE": str(path), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True)
    limit = threading.Timer(60, os.killpg, (job.pid, signal.SIGKILL))
    limit.start()
    try:
        pids, grown = [], 0
        for line in job.stdout:
            pids += [int(line.split()[1])] if line.startswith("pid") else []
            grown += line == "grown\n"
            if grown >= 5 and len(pids) == 2 and has_both(path):
                break
        assert grown >= 5, "the job ended by itself, or its timeline does not grow"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        job.communicate()
    finally:
        limit.cancel()
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    events = json.loads(path.read_text(encoding="utf-8"))
    for rank in range(2):
        assert sum(e["pid"] == rank and e["name"] == "ALLREDUCE" for e in events) > 100


def test_a_piece_torn_anywhere_is_cut_away(tmp_path):
    """Every byte of it, as a kill in the middle of its write leaves it."""
    path = tmp_path / "t.json"
    first, second = '{"name":"a","args":{"x":1}}', ',\n{"name":"b","args":{}},\n{"name":"c"}\n]\n'
    for written in range(len(second) + 1):
        path.write_text("[\n" + first + second[:written] + "\n]\n"[written:], encoding="utf-8")
        timeline_end.mend(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))
        assert events[0] == json.loads(first)
        assert [e["name"] for e in events] == ["a", "b", "c"][: len(events)]
        timeline_end.mend(str(path))
        assert json.loads(path.read_text(encoding="utf-8")) == events


def test_what_is_no_timeline_is_left_alone(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("{}", encoding="utf-8")
    timeline_end.mend(str(path))
    assert path.read_text(encoding="utf-8") == "{}"
    timeline_end.mend(str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
