"""What `import horon` costs, and what interrupts a wait."""

import itertools
import os
import re
import site
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import run_job

from horon.launcher.prefixes import python_prefixes


def python(source, **options):
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True,
                          timeout=120, check=True, **options).stdout


@pytest.mark.alone
def test_import_is_light():
    """No framework, no MPI, and quick: the best of several, since machines have other work too."""
    timed = ("import time; t = time.perf_counter(); import horon; print(time.perf_counter() - t);"
             "import sys; assert not {'torch', 'numpy', 'mpi4py'} & set(sys.modules)")
    assert min(float(python(timed)) for _ in range(5)) < 0.150


def test_packages_are_looked_for_where_this_python_does(monkeypatch):
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    monkeypatch.setattr(site, "getuserbase", lambda: "/home/u/.local")
    monkeypatch.setattr(sys, "path", ["/work", f"{sys.prefix}/lib/python3.11/site-packages",
                                      "/opt/base/lib/python3.11/site-packages/", Path("/opt"),
                                      "/opt/more/lib/python3/dist-packages"])
    assert python_prefixes().split(":") == [sys.prefix, "/home/u/.local", "/opt/base", "/opt/more"]
    monkeypatch.setattr(site, "ENABLE_USER_SITE", False)
    assert "/home/u/.local" not in python_prefixes().split(":")


def test_no_mpi_and_no_gpu_library_in_a_one_host_job():
    out = python("import horon; horon.init(); maps = open('/proc/self/maps').read();"
                 "print('libmpi' in maps, 'libcuda' in maps or 'libhoron_cuda' in maps,"
                 "      horon.controller())")
    assert out.split() == ["False", "False", "self"]


def test_the_readmes_example_needs_no_numpy(tmp_path):
    """PyTorch does not bring it."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    example = re.search(r"## Use\n\n```python\n(.*?)```", readme, re.DOTALL)[1]
    script = tmp_path / "train.py"
    script.write_text(f"import os, sys\nsys.modules['numpy'] = None\nos.chdir({str(tmp_path)!r})\n"
                      f"{example}"
                      "assert hvd.allgather_object(hvd.rank()) == [0, 1]\n"
                      "print('done', hvd.rank(), flush=True)\n")
    command = [sys.executable, "-m", "horon.launcher", "-np", "2", "--no-prefix"]
    run_job([*command, sys.executable, str(script)], 2)
    assert (tmp_path / "model.pt").exists()


def test_ctrl_c_interrupts_a_wait(tmp_path):
    """A wait for a tensor that the other rank has not submitted ends with KeyboardInterrupt."""
    fifo = tmp_path / "interrupted"
    os.mkfifo(fifo)
    script = tmp_path / "wait.py"
    script.write_text(
        "import os, signal, threading, torch, horon.torch as hvd\n"
        "hvd.init()\n"
        "if hvd.rank() == 0:\n"
        "    handle = hvd.allreduce_async(torch.ones(2), name='late')\n"
        "    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "    try:\n"
        "        hvd.synchronize(handle)\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted', flush=True)\n"
        f"    open({str(fifo)!r}, 'w').close()\n"
        "    hvd.synchronize(handle)\n"
        "else:\n"
        f"    open({str(fifo)!r}).close()\n"
        "    hvd.allreduce(torch.ones(2), name='late')\n"
        "print('done', hvd.rank(), flush=True)\n"
    )
    command = [sys.executable, "-m", "horon.launcher", "-np", "2", "--no-prefix"]
    assert "interrupted" in run_job([*command, sys.executable, str(script)], 2)


@pytest.mark.alone
def test_submitting_costs_little():
    """One process, one tensor: what Python and the bindings add to a blocking call."""
    out = python(
        "import time, torch, horon.torch as hvd\n"
        "hvd.init(); torch.set_num_threads(1); tensor = torch.ones(1)\n"
        "def batch():\n"
        "    start = time.perf_counter()\n"
        "    for _ in range(1000): hvd.allreduce_(tensor, name='small', op=hvd.Sum)\n"
        "    return (time.perf_counter() - start) / 1000\n"
        "print(min(batch() for _ in range(10)))\n"
    )
    assert float(out) < 200e-6


@pytest.mark.parametrize("levels, said, silent", [
    ("info", [r"info runtime: rank [01] of 2 joined over shm, negotiating over shm$"], "trace"),
    ("off,negotiator=trace", [r"trace negotiator: report 1: 0 known, 1 new \(first '\S*x'\)$",
                              r"trace negotiator: decision 1: 1 tensors, 1 of them for"],
     "runtime:"),
    ("warn", [], "horon["),
])
def test_log_levels(tmp_path, levels, said, silent):
    script = tmp_path / "log.py"
    script.write_text("import torch, horon.torch as hvd\nhvd.init()\n"
                      "hvd.allreduce(torch.ones(1), name='x')\n"
                      "print('done', hvd.rank(), flush=True)\n")
    command = [sys.executable, "-m", "horon.launcher", "-np", "2", "--no-prefix"]
    output = run_job([*command, sys.executable, str(script)], 2, {"HORON_LOG": levels})
    for rank, line in itertools.product((0, 1), said):
        assert re.search(rf"horon\[{rank}\] .*{line}", output, re.M), output
    assert silent not in output
