"""horonrun --check-build: what was built, what is found, and what a job would use."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(importlib.util.find_spec("horon").submodule_search_locations[0])
PLUGIN = "libhoron_mpi.so"
CORE = next(PACKAGE.glob("_core.*")).name


def check_build(**changes):
    return subprocess.run(
        [sys.executable, "-m", "horon.launcher", "--check-build"], env={**os.environ, **changes},
        cwd="/", capture_output=True, text=True, timeout=60, check=False,
    )


def section(output, title):
    """Lines of one section, without the space before them."""
    lines = output.split(f"\n{title}:\n", 1)[1].split("\n\n", 1)[0].splitlines()
    return [line.strip() for line in lines]


def without(tmp_path, *names):
    """PYTHONPATH of a package like the installed one that lacks some files."""
    copy = tmp_path / "horon"
    copy.mkdir()
    for path in PACKAGE.iterdir():
        if path.name not in names:
            (copy / path.name).symlink_to(path)
    return str(tmp_path)


def test_a_variable_that_no_rank_would_take_is_all_that_is_said():
    done = check_build(HORON_CYCLE_TIME="fast")
    assert done.returncode == 2 and done.stdout == "", done
    assert done.stderr.startswith("horonrun: HORON_CYCLE_TIME: 'fast' is not a non-negative number")
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_says_what_is_built_found_and_used(needs_mpi):
    done = check_build(HOROVOD_FUSION_THRESHOLD="5")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Horon ") and f": {PACKAGE}/libhoron.so\n" in done.stdout
    built = section(done.stdout, "Built")
    assert f"[X] MPI, between hosts: {PACKAGE}/{PLUGIN}" in built
    assert "[X] PyTorch, horon.torch" in built
    found = section(done.stdout, "Found")
    assert any(line.startswith("[X] libmpi: /") and "MPI" in line for line in found)
    assert any(line.startswith("[X] mpirun: /") for line in found)
    here, far = section(done.stdout, "Used")
    assert here == "ranks on one host: started by horonrun, over shared memory"
    assert far.startswith("ranks on several hosts: through /") and "MPI between hosts" in far
    knobs = section(done.stdout, "Variables")
    assert next(k for k in knobs if k.startswith("HORON_FUSION_THRESHOLD ")).endswith("; now '5'")
    assert not next(k for k in knobs if k.startswith("HORON_CYCLE_TIME ")).endswith("'")


def test_says_whether_shared_memory_gets_huge_pages():
    """As the kernel's own count of such pages has it, with what decides it."""
    line = next(x for x in section(check_build().stdout, "Found") if "huge pages" in x)
    said = re.fullmatch(r"\[(.)\] huge pages for shared memory: (\d) of 8 MiB \((.*)\)", line)
    assert said, line
    assert (said[1] == "X") == (said[2] != "0")
    enabled = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    if not enabled.exists():
        assert said[3].startswith("no /sys"), line
        return
    setting = re.search(r"\[(\w+)\]", enabled.read_text())[1]
    assert f"shmem_enabled is {setting}" in said[3]
    if setting in ("never", "deny"):
        assert said[2] == "0" and "with advise" in said[3]
    elif setting == "force":
        assert said[2] != "0"


def test_says_what_gpus_need():
    """On a machine without a driver nothing of a GPU is found, and each line says why."""
    done = check_build(CUDA_VISIBLE_DEVICES="")
    built, found = section(done.stdout, "Built"), section(done.stdout, "Found")
    mark = "X" if (PACKAGE / "libhoron_cuda.so").exists() else " "
    assert any(line.startswith(f"[{mark}] CUDA, for tensors of GPUs: ") for line in built)
    for part in ("NVIDIA driver", "NCCL", "cuBLAS"):
        why = next(line for line in found if line.startswith(f"[ ] {part}: "))
        assert "GPU" in why or "CUDA" in why, why


@pytest.mark.parametrize(
    "variables, words",
    [
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}, "Slurm job 7 on n[1-2]"),
        ({"PMI_RANK": "0"}, "PMI_RANK set"),
        ({"PMIX_RANK": "0"}, "PMIX_RANK set"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_RANK set"),
        ({"TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "h"},
         "TORCHELASTIC_RUN_ID set; MASTER_ADDR set"),
        ({}, "no batch system, no other launcher"),
    ],
)
def test_says_what_is_around(variables, words):
    assert f"around: {words}" in section(check_build(**variables).stdout, "Found")


def test_finds_mpich(tmp_path):
    hydra = tmp_path / "mpiexec.hydra"
    hydra.write_text("#!/bin/sh\n")
    hydra.chmod(0o755)
    found = section(check_build(PATH=f"{tmp_path}:{os.environ['PATH']}").stdout, "Found")
    assert f"around: MPICH's {hydra}" in found


def test_an_mpirun_that_is_not_open_mpis_is_not_used(tmp_path):
    other = tmp_path / "bin" / "mpirun"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho HYDRA build details:\n")
    other.chmod(0o755)
    done = check_build(MPI_HOME=str(tmp_path))
    assert done.returncode == 0
    assert f"[X] mpirun: {other} (HYDRA build details:)" in section(done.stdout, "Found")
    far = section(done.stdout, "Used")[1]
    assert f"not possible: {other} is not Open MPI's" in far


def test_without_the_plugin_it_says_so(tmp_path):
    done = check_build(PYTHONPATH=without(tmp_path, PLUGIN))
    assert done.returncode == 0, done.stderr
    missing = "[ ] MPI, between hosts: no MPI was found when this was built"
    assert missing in section(done.stdout, "Built")
    far = section(done.stdout, "Used")[1]
    assert far.startswith("ranks on several hosts: not possible: ")


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("libhoron.so", "no library", "libhoron.so: file too short"),
        ("libhoron.so", None, "libhoron.so is not in "),
        (CORE, "no module", f"{CORE}: file too short"),
        (CORE, None, "_core"),
    ],
)
def test_what_does_not_open_is_one_line(tmp_path, name, text, words):
    folder = without(tmp_path, name)
    if text is not None:
        (tmp_path / "horon" / name).write_text(text)
    done = check_build(PYTHONPATH=folder)
    assert (done.returncode, done.stdout) == (1, ""), done
    assert re.fullmatch(r"horonrun: .*; install Horon again: pip install .*\n", done.stderr), done
    assert words in done.stderr, done
    # A program hears of it where it uses Horon.
    for program in ("import horon; horon.init()", "from horon import init", "import horon.torch"):
        done = subprocess.run([sys.executable, "-c", program], cwd="/", capture_output=True,
                              env={**os.environ, "PYTHONPATH": folder}, text=True, check=False)
        last = done.stderr.splitlines()[-1]
        assert done.returncode == 1 and last.startswith("ImportError: "), done


@pytest.mark.parametrize("variable", ["HORON_FUSION_THRESHOLD", "HOROVOD_FUSION_THRESHOLD"])
def test_wrong_setting_is_said_once(variable):
    """By horonrun, before there are ranks."""
    done = subprocess.run(
        [sys.executable, "-m", "horon.launcher", "-np", "2", "true"],
        env={**os.environ, variable: "abc"}, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"horonrun: {variable}: 'abc' is not a whole number (")
    assert len(done.stderr.splitlines()) == 1
