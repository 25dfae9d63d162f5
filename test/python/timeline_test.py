"""Timelines of several nodes, and of a job that is killed. What is in them is checked in
bodies/timeline.py, which surface_test.py runs on one node."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from conftest import in_full_tier
from horon.launcher import main, timeline_end


@pytest.mark.parametrize("np", [2, pytest.param(4, marks=in_full_tier)])
def test_pretended_nodes(launch, needs_mpi, np):
    """Two nodes, whose clocks are measured over the control channel."""
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


# --- files of hosts that share no file system -----------------------------------------------------


def timeline(path, *names, recording="7-1"):
    """As ranks write it."""
    first = '{"name":"horon_timeline","ph":"M","pid":0,"tid":0,"args":{"id":"%s"}}' % recording
    events = [first, *(json.dumps({"name": name}) for name in names)]
    path.write_text("[\n" + ",\n".join(events) + "\n]\n", encoding="utf-8")
    return str(path)


def test_timelines_of_several_hosts_become_one(tmp_path):
    files = [timeline(tmp_path / "a", "a1", "a2"), timeline(tmp_path / "b"),
             timeline(tmp_path / "c", "c1"), timeline(tmp_path / "d")]
    out = tmp_path / "all"
    out.write_text("something longer than what is written now" * 20)
    assert main.main(["--merge-timelines", str(out), *files]) == 0
    names = [event["name"] for event in json.loads(out.read_text(encoding="utf-8"))]
    assert names == ["horon_timeline", "a1", "a2", "c1"]


@pytest.mark.parametrize("text, words", [
    ("[\n]\n", "b is no timeline of Horon's"),
    ("", "b is no timeline of Horon's"),
    (None, "b: No such file or directory"),
    ("other", "b is of another recording than "),
    ("torn", "b ends in the middle of an event"),
    ("out", "would write over "),
])
def test_what_cannot_be_merged_is_one_line(tmp_path, capsys, text, words):
    first, second = timeline(tmp_path / "a", "a1"), tmp_path / "b"
    out = first if text == "out" else str(tmp_path / "all")
    if text == "other":
        timeline(second, recording="8-1")
    elif text == "torn":
        timeline(second, "b1")
        second.write_text(second.read_text()[:-6])
    elif text is not None:
        second.write_text(text)
    assert main.main(["--merge-timelines", out, first, str(second)]) == 2
    said = capsys.readouterr().err
    assert words in said and said.startswith("horonrun: ") and len(said.splitlines()) == 1
    assert not (tmp_path / "all").exists()


def test_a_merge_of_nothing_is_refused(capsys):
    assert main.main(["--merge-timelines", "all"]) == 2
    assert "needs the file to write, and those to read" in capsys.readouterr().err
