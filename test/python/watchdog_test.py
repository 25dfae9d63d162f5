"""The watchdog: what it says, and that waits end, when the runtime's own thread is stuck."""

import os
import re
import threading

from pathlib import Path

from launching import horonrun

BODY = Path(__file__).parent / "bodies" / "standstill.py"


def test_a_runtime_that_does_not_move(tmp_path):
    held = tmp_path / "held"
    for name in (held, f"{held}.go"):
        os.mkfifo(name)
    reached = threading.Thread(target=lambda: open(held, "rb").close(), daemon=True)
    reached.start()
    done = horonrun(
        "-np", "2", "--no-prefix", "--grace-period", "30", "python", str(BODY),
        HORON_LEND="0", HORON_STALL_SILENCE_SECONDS="3", STANDS=str(held),
    )
    assert not reached.is_alive()
    # Rank 1's watchdog, from its own shared words.
    said = re.search(
        r"horon\[1\] error watchdog: the runtime has not moved for [2-9] s: thread \d+ \(horon\) "
        r"sleeps.*; the program waits for 0/allreduce.x, and submitted 0/allreduce.x last, \d+ s",
        done.stderr,
    )
    assert said, done.stderr
    # Rank 0 gives it up; then rank 1's wait ends too, though nobody can finish its work.
    assert "rank 0 raised: rank 1 has not answered for 3" in done.stdout, done.stderr
    ended = r"rank 1 raised: .*rank \d .*\(this rank's runtime is stuck, and its tensors with it\)"
    assert re.search(ended, done.stdout), done.stdout + done.stderr
    assert "rank 1 lent on: True" in done.stdout, done.stdout  # its thread may come back
    left = re.search(r"rank 1 left after ([\d.]+) s", done.stdout)
    assert left and float(left[1]) < 3.0, done.stdout
    after = "rank 1 afterwards: Horon was shut down while its runtime was stuck"
    assert after in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0  # both programs have dealt with their error
