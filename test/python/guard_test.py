"""What the guard of a process that was killed ends and removes."""

import os
import signal
import subprocess
import sys
import time

import pytest

# A child that does not end by itself, in its parent's care with a folder; the parent is killed.
PARENT = """
import os, signal, subprocess, sys
from horon.launcher.guard import Guard
guard = Guard()
child = subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL, start_new_session=True)
os.mkdir(sys.argv[1])
open(os.path.join(sys.argv[1], "socket"), "w").close()
if sys.argv[2] == "process":
    guard.add_process(child.pid, 0.1, sys.argv[1])
elif sys.argv[2] == "group":
    guard.add(child.pid, 0.1, sys.argv[1])
else:
    guard.add_process(child.pid, 0.1, "")
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(folder, what):
    """Pid of the child, once the parent has been killed."""
    done = subprocess.run([sys.executable, "-c", PARENT, str(folder), what], capture_output=True,
                          text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return int(done.stdout)


def gone(holds, limit_s=20):
    """Nothing tells what becomes of others' processes and folders."""
    end = time.monotonic() + limit_s
    while holds() and time.monotonic() < end:
        time.sleep(0.01)
    return not holds()


def running(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("what", ["process", "group"])
def test_what_is_killed_leaves_no_folder(tmp_path, what):
    folder = tmp_path / "left behind"
    pid = killed(folder, what)
    assert gone(lambda: running(pid)) and gone(folder.exists)


def test_a_folder_that_was_not_given_stays(tmp_path):
    folder = tmp_path / "other"
    pid = killed(folder, "none")
    assert gone(lambda: running(pid))
    assert os.listdir(folder) == ["socket"]
