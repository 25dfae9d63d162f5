"""The benchmark of GPUs where there is none: it says so, and its table and its reading of a trace
are right for figures that are made up."""

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "test" / "bench"))

import gpu_bench  # noqa: E402
import gpu_step  # noqa: E402


def has_driver():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def test_without_a_gpu_it_measures_nothing_and_says_why(tmp_path):
    if has_driver():
        pytest.skip("this machine has an NVIDIA driver")
    written = tmp_path / "gpu.md"
    done = subprocess.run([sys.executable, ROOT / "test" / "bench" / "gpu_bench.py",
                           "--markdown", written], capture_output=True, text=True, timeout=60)
    assert done.returncode == 77
    assert "Nothing was measured: this machine has no NVIDIA driver" in done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("|")][2:]
    assert len(rows) == len(gpu_bench.LINES)
    assert all("| not measured |" in row for row in rows)
    assert written.read_text() == done.stdout


def test_the_documented_table_is_that_of_the_command():
    """Its figures aside."""
    documented = (ROOT / "docs" / "benchmarks.md").read_text().partition("## On a GPU")[2]
    for line in gpu_bench.LINES:
        assert f"| {line.what} | {line.goal} | " in documented


AT_ONCE = "one rank, one number, shortly after another: from the call to the launch"


def kernel(name, seconds, moved=1e9, launches=1):
    return {"name": f"ResNet-50, {name}", "seconds": seconds, "bytes": moved, "launches": launches}


def measured(**changed):
    """All that the table wants of ResNet-50, all goals reached; some changed."""
    found = gpu_bench.Found()
    one_call = "one product of each pair, a call of cuBLAS each"
    parts = {part["name"]: part for part in (
        kernel("copy", 1e-3), kernel("read", 0.9e-3), kernel("pack, scaled", 1.1e-3),
        kernel("unpack", 1.1e-3), kernel("dots of all pairs", 1e-3, launches=2),
        kernel(one_call, 11e-3, launches=161))}
    parts |= {name: {"name": name, "samples": [t * 1e-6 for t in times]} for name, times in {
        "a kernel": [5, 6, 7] * 4, "a kernel, after a pause": [5, 6, 7] * 4,
        "Horon's kernel": [15, 17, 19] * 4,
        "Horon's kernel, after a pause": [16, 17, 18] * 4,
        "NCCL, blocking, sum": [9, 9, 9] * 4, "NCCL, blocking, exchange": [10, 10, 10] * 4,
        "Horon, submitted and waited for": [13, 14, 13] * 4, "Horon, run": [11, 12, 11] * 4,
        "Horon's group, exchange": [11, 12, 11] * 4}.items()}
    parts["memory"] = {"name": "memory", "bytes": 5 << 20}
    parts["waits"] = {"name": "waits", "program": {}, "runtime": {}}
    for part in (parts | changed).values():
        found.add(dict(part))
    return found


def verdicts(found):
    """By row that has a goal and was measured."""
    return {line.what: cells[2:] for line in gpu_bench.LINES
            if (cells := line.cells(found))[3]}


def test_goals_that_are_reached():
    rows = verdicts(measured())
    assert len(rows) == 11
    assert all(reached == "yes" for _, reached in rows.values()), rows
    assert rows["ResNet-50, 161 tensors: pack, scaled"][0] == "1100.0 us, 909 GB/s, 91%, 1 launch"
    assert rows["ResNet-50, 161 tensors: dots of all pairs (Adasum)"][0].endswith("90%, 2 launches")
    assert rows[AT_ONCE][0] == "11.0 us (10.0 to 12.0)"


@pytest.mark.parametrize("row, changed", [
    ("ResNet-50, 161 tensors: pack, scaled", kernel("pack, scaled", 1.2e-3)),
    ("ResNet-50, 161 tensors: unpack", kernel("unpack", 1.1e-3, launches=2)),
    ("ResNet-50, 161 tensors: dots of all pairs (Adasum)", kernel("dots of all pairs", 1.07e-3)),
    (AT_ONCE, {"name": "Horon's kernel", "samples": [22e-6] * 12}),
    ("the same, the caller's thread enqueuing (`horon_run`)",
     {"name": "Horon, run", "samples": [15e-6] * 12}),
    ("memory of the device beyond the fusion buffer, one rank, without NCCL's",
     {"name": "memory", "bytes": 64 << 20}),
    ("waits for the device in training steps, on the program's threads",
     {"name": "waits", "program": {"cudaStreamSynchronize": 1}, "runtime": {}}),
])
def test_a_goal_that_is_missed(row, changed):
    rows = verdicts(measured(**{changed["name"]: changed}))
    assert rows[row][1] == "**no**", rows[row]


def test_what_is_missing_is_named():
    found = measured(NCCL={"name": "NCCL's calls", "missing": "none here"})
    found.missing["waits"] = "two\n  lines"
    del found.parts["NCCL, blocking, sum"]
    text = gpu_bench.text_of(found)
    assert "\n- Missing: NCCL's calls (none here).\n- Missing: waits (two lines)." in text
    assert "later than NCCL's call (blocking) | 5 us | not measured |" in text


def test_a_part_that_does_not_end_is_ended_with_all_that_it_has_started(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_bench, "LIMIT_S", 1)
    found, lock = gpu_bench.Found(), tmp_path / "lock"
    program = f"flock {lock} sleep 300 & wait"
    assert gpu_bench.run(found, "waits", ["sh", "-c", program]) == ""
    assert found.failed and found.missing == {"waits": "not done after 1 s"}
    free = subprocess.run(["flock", "--timeout", "10", lock, "true"])
    assert lock.exists() and free.returncode == 0


def test_a_product_by_itself_has_no_share():
    part = kernel("product", 1e-3) | {"name": "4096 x 1024, product with 1024 x 4, by cuBLAS"}
    row, = (line for line in gpu_bench.LINES if line.what.startswith("4096 x 1024"))
    assert row.cells(measured(product=part))[2] == "1000.0 us, 1000 GB/s, 1 launch"


@pytest.mark.parametrize("taken, found", [
    (5 << 20, {"missing": "the fusion buffer was not taken"}), (128 << 20, {"bytes": 0}),
    (133 << 20, {"bytes": 5 << 20})])
def test_memory_is_what_is_beyond_a_buffer_that_was_taken(taken, found):
    assert gpu_step.beyond_the_buffer(taken) == found


@pytest.mark.parametrize("group, host, right", [
    (10, 0, True), (0, 0, False), (0, 10, False), (10, 1, False)])
def test_buckets_that_went_through_the_host_are_no_measurement(group, host, right):
    before = {"gpu.buckets.group": 20, "gpu.buckets.host": 3}
    after = {"gpu.buckets.group": 20 + group, "gpu.buckets.host": 3 + host}
    assert gpu_step.all_over_nccl(before, after) == right


def event(cat, name, tid, ts, dur=1.0):
    return {"cat": cat, "name": name, "tid": tid, "ts": ts, "dur": dur}


def trace():
    """Thread 1 trains, 2 is autograd's, 3 the runtime's."""
    return [
        {"name": "process_name", "ph": "M"}, event("cpu_op", "aten::mul", 1, 11),
        event("cpu_op", "aten::mul", 2, 12), event("user_annotation", gpu_step.STEP, 1, 10, 10),
        event("user_annotation", gpu_step.CONTROL, 1, 30, 5),
        event("cuda_runtime", "cudaLaunchKernel", 1, 11),
        event("cuda_runtime", "cudaEventQuery", 3, 12),
        event("cuda_runtime", "cudaMemcpyAsync", 2, 12),
        event("cuda_runtime", "cudaStreamWaitEvent", 1, 13),
        event("cuda_runtime", "cudaDeviceSynchronize", 1, 31),
        event("cuda_runtime", "cudaDeviceSynchronize", 1, 50),
    ]


def test_a_step_in_which_nobody_waits():
    assert gpu_step.found_in(trace()) == {"program": {}, "runtime": {}}


@pytest.mark.parametrize("name", ["cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy",
                                  "cuMemcpyDtoH_v2", "cuCtxSynchronize", "cudaFree",
                                  "cudaFreeHost", "cuMemFreeHost", "cudaHostUnregister"])
@pytest.mark.parametrize("thread, of", [(1, "program"), (2, "program"), (3, "runtime")])
def test_a_step_in_which_a_thread_waits(name, thread, of):
    found = gpu_step.found_in([*trace(), event("cuda_runtime", name, thread, 15)])
    assert found == {"program": {}, "runtime": {}, of: {name: 1}}
    assert json.loads(json.dumps(found)) == found


def test_a_trace_without_the_wait_that_took_place_proves_nothing():
    blind = [e for e in trace() if e["name"] != "cudaDeviceSynchronize"]
    assert "does not show" in gpu_step.found_in(blind)["missing"]


def test_nor_does_one_without_the_runtimes_calls():
    blind = [e for e in trace() if e.get("tid") != 3]
    assert "no call of the runtime's threads" in gpu_step.found_in(blind)["missing"]
