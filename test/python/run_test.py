"""horon.run: a function on all ranks of a new job, from a program, a thread and a notebook's
streams."""

import inspect
import io
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import redirect_stderr, redirect_stdout

import pytest
from conftest import in_full_tier
from hosts import world as world  # a fixture
from launching import alive

import horon


def total(x, scale=1):
    import torch

    import horon.torch as hvd

    hvd.init()
    summed = hvd.allreduce(torch.full((3,), float(hvd.rank() + x)), op=hvd.Sum, name="x")
    return hvd.rank(), (summed * scale).tolist()


def meet(x, times=1):
    """Without PyTorch, which takes a second to import."""
    horon.init()
    horon.join()
    print(f"hello from {horon.rank()}")
    return horon.rank(), x * times


def raises(rank):
    horon.init()
    if horon.rank() == rank:
        raise ValueError("a bad batch")
    horon.join()


class Stubborn(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


def here(call, *args, **kwargs):
    """What the call returns, or what it raises, and what it writes."""
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        try:
            value = call(*args, **kwargs)
        except horon.HoronRunError as error:
            value = error
    return value, out.getvalue(), errors.getvalue()


def test_results_by_rank_and_output():
    offset = 10  # a closure travels, too
    value, out, errors = here(horon.run, lambda x: meet(x, times=2) + (offset,), (4,), np=3)
    assert value == [(rank, 8, 10) for rank in range(3)], errors
    assert sorted(out.splitlines()) == [f"[{rank}] hello from {rank}" for rank in range(3)]


def test_horovods_arguments(tmp_path):
    value, _, errors = here(
        horon.run, meet, args=[1], kwargs={"times": 3}, num_proc=1, use_gloo=True, verbose=True,
        start_timeout=30, output_filename=str(tmp_path / "out"), executable=sys.executable,
        hosts="localhost:1", disable_cache=True, network_interfaces=["lo"],
    )  # fmt: skip
    assert value == [(0, 3)], errors
    assert (tmp_path / "out" / "rank.0" / "stdout").read_text() == "hello from 0\n"
    assert "--disable-cache has no effect" in errors and "used: 1 ranks" in errors


def test_from_another_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(horon.run(os.getpid)))
    thread.start()
    thread.join(60)
    assert len(found) == 1 and found[0][0] not in (os.getpid(), 0)


def test_large_results():
    """More than a pipe or a packet holds, both ways."""
    value, _, errors = here(horon.run, lambda data: data[::-1], (b"ab" * 3_000_000,), np=2)
    assert value == [b"ba" * 3_000_000] * 2, errors


@pytest.mark.parametrize("np, use_mpi", [(2, True), *(
    pytest.param(np, use_mpi, marks=in_full_tier)
    for np, use_mpi in ((2, False), (4, False), (4, True))
)])
def test_tensors_and_large_results(needs_mpi, np, use_mpi):
    value, _, errors = here(horon.run, lambda x: total(x) + (b"z" * 5_000_000,), (0,), np=np,
                            use_mpi=use_mpi)
    summed = [np * (np - 1) / 2.0] * 3
    assert value == [(rank, summed, b"z" * 5_000_000) for rank in range(np)], errors


HOSTS = """
import socket, horon

def where(x):
    horon.init()
    if x == horon.rank(): raise KeyError("x")
    horon.join()
    return horon.rank(), socket.gethostname(), b"z" * 5_000_000

found = horon.run(where, (None,), hosts="h1:1,h2:1")
assert [row[:2] for row in found] == [(0, "h1"), (1, "h2")], found
assert found[1][2] == b"z" * 5_000_000
try: horon.run(where, (1,), hosts="h1:1,h2:1")
except horon.HoronRunError as error:
    assert error.rank == 1 and error.exceptions[1].args == ("x",), error
    print("all well")
"""


def test_on_two_hosts(world):
    done = world(2, sys.executable, "-c", HOSTS)
    assert (done.code, done.out) == (0, "all well\n"), done.all


@pytest.mark.parametrize("rank", [0, 2])
def test_an_exception_comes_back_and_ends_the_others(rank):
    failure, _, errors = here(horon.run, raises, (rank,), np=3)
    assert isinstance(failure, RuntimeError) and failure.rank == rank, errors
    assert str(failure) == f"horon.run: rank {rank} raised ValueError: a bad batch"
    assert type(failure.__cause__) is ValueError and failure.__cause__.args == ("a bad batch",)
    assert 'raise ValueError("a bad batch")' in str(failure.__cause__.__cause__)
    others = {r: error for r, error in failure.exceptions.items() if r != rank}
    assert len(others) == 2 and all(f"rank {rank}" in str(e) for e in others.values()), others
    assert all(isinstance(error, horon.HoronError) for error in others.values())


def test_a_rank_that_dies():
    failure, _, _ = here(horon.run, lambda: os.kill(os.getpid(), signal.SIGKILL), np=2)
    assert failure.rank in (0, 1) and failure.exceptions == {} and failure.__cause__ is None
    assert f"rank {failure.rank} was killed by signal 9 (SIGKILL)" in str(failure)
    last = lambda: os._exit(0) if os.environ["HORON_RANK"] == "1" else 5  # noqa: E731
    failure, _, _ = here(horon.run, last, np=2)
    assert str(failure) == "horon.run: rank 1 ended before the function returned"
    assert failure.rank == 1


def test_what_cannot_come_back():
    failure, _, _ = here(horon.run, lambda: (x for x in ()), np=2)
    sentence = "raised TypeError: the function returned a generator that cannot be pickled"
    assert sentence in str(failure)
    assert type(failure.__cause__) is TypeError

    def stubborn():
        raise Stubborn(1, 2)

    failure, _, _ = here(horon.run, stubborn)
    assert type(failure.__cause__) is RuntimeError and "Stubborn: 1 2" in str(failure.__cause__)


ELSEWHERE = """
class Batch:
    pass

class BadBatch(Exception):
    pass
"""


@pytest.mark.parametrize("raises", [True, False])
def test_what_only_the_rank_can_unpickle(tmp_path, raises):
    """Of a module that the caller cannot import: an exception, and a result."""
    (tmp_path / "only_on_ranks.py").write_text(ELSEWHERE)
    folder = str(tmp_path)

    def uses_it():
        sys.path.append(folder)
        import only_on_ranks

        if raises:
            raise only_on_ranks.BadBatch("number 7\nof 9")
        return only_on_ranks.Batch()

    failure, _, errors = here(horon.run, uses_it)
    assert isinstance(failure, horon.HoronRunError) and failure.rank == 0, errors
    if raises:
        assert str(failure).startswith("horon.run: rank 0 raised BadBatch: number 7"), failure
        assert type(failure.__cause__) is RuntimeError
        assert str(failure.__cause__) == "BadBatch: number 7\nof 9"
        assert "only_on_ranks.BadBatch: number 7" in str(failure.__cause__.__cause__)
    else:
        assert str(failure) == ("horon.run: rank 0 returned a Batch that cannot be unpickled here: "
                                "ModuleNotFoundError: No module named 'only_on_ranks'")


@pytest.mark.parametrize("func, changes, words", [
    (total, {"np": 0}, "np is 0: a job has at least 1 rank"),
    (total, {"num_proc": -1}, "np is -1: a job has at least 1 rank"),
    (total, {"np": "2"}, "np is '2'"),
    (total, {"np": True}, "np is True"),
    (total, {"np": 2, "num_proc": 2}, "give np or num_proc, not both"),
    (total, {"hosts": "a:1", "hostfile": "f"}, "give hosts or hostfile, not both"),
    (total, {"use_gloo": True, "use_mpi": True}, "give use_gloo or use_mpi, not both"),
    (total, {"min_np": 2}, "min_np is for elastic jobs"),
    (total, {"host_discovery_script": "s"}, "host_discovery_script is for elastic jobs"),
    (3, {}, "3 is not a function"),
    (total, {"args": 3}, "args is a tuple and kwargs a dict"),
    (total, {"args": (threading.Lock(),)}, "args[0] cannot be pickled"),
    (total, {"kwargs": {"x": threading.Lock()}}, "kwargs['x'] cannot be pickled"),
])
def test_wrong_calls_are_one_sentence(func, changes, words):
    with pytest.raises(ValueError) as caught:
        horon.run(func, **changes)
    assert words in str(caught.value) and "\n" not in str(caught.value)


HOROVOD = """func, args=(), kwargs=None, num_proc=1, min_num_proc=None, max_num_proc=None,
slots=None, reset_limit=None, cooldown_range=None, hosts=None, hostfile=None,
host_discovery_script=None, start_timeout=None, ssh_port=None, ssh_identity_file=None,
disable_cache=None, output_filename=None, verbose=None, use_gloo=None, use_mpi=None, mpi_args=None,
network_interface=None, network_interfaces=None, executable=None, np=None, min_np=None,
max_np=None"""


def test_arguments_are_those_of_horovods_run():
    """But for num_proc: None is 1, or all slots of the hosts."""
    ours = ", ".join(map(str, inspect.signature(horon.run).parameters.values()))
    assert ours == " ".join(HOROVOD.split()).replace("num_proc=1", "num_proc=None")


def test_a_function_that_cannot_be_pickled():
    lock = threading.Lock()

    def held():
        return lock

    with pytest.raises(horon.HoronInvalidArgument, match="the function .*held cannot be pickled"):
        horon.run(held)


def test_what_horonrun_refuses_is_the_error():
    failure, _, errors = here(horon.run, total, (1,), hosts="no-such-host.invalid:1")
    assert str(failure) == ("horon.run: host no-such-host.invalid cannot be resolved: neither DNS "
                            "nor /etc/hosts knows it"), errors


PROGRAM = """
import os, signal, sys, time
import horon

def sleep(folder):
    open(os.path.join(folder, os.environ["HORON_RANK"]), "w").write(str(os.getpid()))
    time.sleep(600)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
try:
    horon.run(sleep, (sys.argv[1],), np=2)
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(3)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_and_death_of_the_caller_end_the_job(tmp_path, number):
    pids = [tmp_path / str(rank) for rank in range(2)]
    caller = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: all(pid.exists() and pid.read_text() for pid in pids), 60)
    caller.send_signal(number)
    output, errors = caller.communicate(timeout=30)
    if number == signal.SIGINT:
        assert (caller.returncode, output) == (3, "interrupted\n"), errors
    wait_for(lambda: not any(alive(int(pid.read_text())) for pid in pids), 15)


def wait_for(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)


CELLS = ["""
import horon
import torch

def mean_of(x):
    import horon.torch as hvd
    hvd.init()
    print("rank", hvd.rank(), "of", hvd.size())
    return hvd.allreduce(torch.full((2,), float(x + hvd.rank())), name="x").tolist()
""", "horon.run(mean_of, args=(1,), np=2)", """
def bad():
    import horon
    horon.init()
    raise ValueError("no such column")
try:
    horon.run(bad, np=2)
except horon.HoronRunError as error:
    print("raised:", type(error.__cause__).__name__, error.__cause__)
"""]


@in_full_tier
def test_in_a_notebook():
    """Cells of a real kernel, which has an event loop, sockets and streams of its own."""
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    manager = pytest.importorskip("jupyter_client.manager", reason="jupyter_client is not installed")
    kernel, client = manager.start_new_kernel(cwd="/")
    shown = []
    try:
        for cell in CELLS * 2:  # a cell may be run again
            reply = client.execute_interactive(
                cell, timeout=60, output_hook=lambda message: shown.append(message["content"]))
            assert reply["content"]["status"] == "ok", reply["content"]
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
    results = [one["data"]["text/plain"] for one in shown if "data" in one]
    assert results == ["[[1.5, 1.5], [1.5, 1.5]]"] * 2, shown
    printed = "".join(one.get("text", "") for one in shown)
    for rank in range(2):
        assert printed.count(f"rank {rank} of 2") == 2, printed
    assert printed.count("raised: ValueError no such column") == 2, printed
