"""CMake alone: without Python, and where a library that it looks for is missing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import in_full_tier

ROOT = Path(__file__).resolve().parents[2]
CMAKE = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
SMALL = ("-DHORON_MPI=off", "-DHORON_WITH_CUDA=off")

pytestmark = pytest.mark.skipif(CMAKE is None, reason="no cmake in PATH")


def cmake(*words, limit_s=120, **changes):
    return subprocess.run([CMAKE, *map(str, words)], env={**os.environ, **changes}, text=True,
                          cwd="/", timeout=limit_s, check=False, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def configure(folder, *options, **changes):
    return cmake("-S", ROOT, "-B", folder, *SMALL, *options, **changes)


@pytest.mark.parametrize("package, debian, options", [
    ("spdlog", "libspdlog-dev", []),
    ("Catch2", "catch2", ["-DHORON_BUILD_TESTS=ON"]),
    ("pybind11", "pybind11-dev", ["-DHORON_PYTHON=ON", f"-DPython_EXECUTABLE={sys.executable}"]),
])
def test_what_is_missing_and_cannot_be_fetched_is_named(tmp_path, package, debian, options):
    done = configure(tmp_path, f"-DCMAKE_DISABLE_FIND_PACKAGE_{package}=ON", *options,
                     GIT_ALLOW_PROTOCOL="none")
    assert done.returncode != 0, done.stdout
    assert (f"{package} is missing and cannot be fetched; install it: apt-get install {debian}"
            in " ".join(done.stdout.split())), done.stdout


@in_full_tier
def test_spdlog_is_fetched_where_it_is_missing(tmp_path):
    """Out of a repository on this machine, with the headers that are here already."""
    headers = Path("/usr/include/spdlog")
    if not headers.is_dir():
        pytest.skip(f"no headers to fetch in {headers}: apt-get install libspdlog-dev")
    theirs = tmp_path / "spdlog"
    shutil.copytree(headers, theirs / "include" / "spdlog")
    (theirs / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.10)\n"
        "project(spdlog CXX)\n"
        "add_library(spdlog_header_only INTERFACE)\n"
        "add_library(spdlog::spdlog_header_only ALIAS spdlog_header_only)\n"
        "target_include_directories(spdlog_header_only INTERFACE include)\n"
        "target_compile_definitions(spdlog_header_only INTERFACE THE_FETCHED_ONE)\n")
    who = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    for words in (("init", "-q"), ("add", "-A"), (*who, "commit", "-q", "-m", "headers"),
                  ("tag", "v1.14.1")):
        subprocess.run(["git", *words], cwd=theirs, check=True)
    folder = tmp_path / "build"
    done = configure(folder, "-DCMAKE_DISABLE_FIND_PACKAGE_spdlog=ON", GIT_CONFIG_COUNT="1",
                     GIT_CONFIG_KEY_0=f"url.file://{theirs}.insteadOf",
                     GIT_CONFIG_VALUE_0="https://github.com/gabime/spdlog.git")
    assert done.returncode == 0, done.stdout
    built = cmake("--build", folder, "--target", "horon_log_objects", "--verbose")
    assert built.returncode == 0 and "-DTHE_FETCHED_ONE" in built.stdout, built.stdout


@in_full_tier
def test_builds_without_python(tmp_path):
    """The library, and a program in C++ that uses it."""
    done = configure(tmp_path, "-DCMAKE_DISABLE_FIND_PACKAGE_Python3=ON", "-DHORON_BUILD_TESTS=ON")
    assert done.returncode == 0, done.stdout
    built = cmake("--build", tmp_path, "--parallel", "2", "--target", "horon_example_allreduce",
                  limit_s=1200)
    assert built.returncode == 0, built.stdout
    alone = subprocess.run([tmp_path / "bin" / "horon_example_allreduce"], capture_output=True,
                           text=True, check=False, timeout=60)
    assert alone.returncode == 0 and "rank 0 of 1: " in alone.stdout, alone
    assert " 0 wrong" in alone.stdout, alone
