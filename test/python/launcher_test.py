"""horonrun by itself: the ranks are shells and small Python programs, so neither libhoron nor a
framework is needed."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from launching import LIMIT_S, alive, command_line, environment, horonrun, wait_until


# --- environment, output --------------------------------------------------------------------------


def test_ranks_know_who_they_are() -> None:
    done = horonrun("-np", "3", "sh", "-c",
                    "echo $HORON_RANK of $HORON_SIZE, local $HORON_LOCAL_RANK")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [f"[{r}] {r} of 3, local {r}" for r in range(3)]
    assert done.stderr == ""


def test_no_prefix() -> None:
    done = horonrun("-np", "2", "--no-prefix", "sh", "-c", "echo same; echo wrong >&2")
    assert done.stdout == "same\nsame\n"
    assert done.stderr == "wrong\nwrong\n"


def test_threads_are_shared_out() -> None:
    cores = len(os.sched_getaffinity(0))
    done = horonrun("-np", "2", "--verbose", "sh", "-c", "echo $OMP_NUM_THREADS")
    assert f"[0] {max(1, cores // 2)}\n" in done.stdout
    assert "OMP_NUM_THREADS=" in done.stderr
    done = horonrun("-np", "2", "sh", "-c", "echo $OMP_NUM_THREADS", OMP_NUM_THREADS="7")
    assert "[1] 7\n" in done.stdout


def test_python_means_this_python() -> None:
    done = horonrun("-np", "1", "python", "-c", "import sys; print(sys.executable)",
                    PATH="/usr/bin:/bin")
    assert done.stdout == f"[0] {sys.executable}\n"


def test_options_become_variables() -> None:
    done = horonrun("-np", "1", "--fusion-threshold-mb", "32", "--cycle-time-ms", "3.5",
                    "--cache-capacity", "9", "--log-level", "INFO", "--start-timeout", "7",
                    "sh", "-c", "env | grep ^HORON_ | sort")
    for line in ("FUSION_THRESHOLD=33554432", "CYCLE_TIME=3.5", "CACHE_CAPACITY=9", "LOG=info",
                 "START_TIMEOUT=7"):
        assert f"[0] HORON_{line}\n" in done.stdout


def test_options_after_the_command_are_the_commands() -> None:
    done = horonrun("-np", "1", "sh", "-c", 'echo "$@"', "sh", "-np", "9", "--mpi", "-H", "x")
    assert done.stdout == "[0] -np 9 --mpi -H x\n"


def test_long_output_is_whole() -> None:
    done = horonrun("-np", "3", "python", "-c", "for i in range(20000): print(i, 'x' * 50)")
    assert done.returncode == 0
    for rank in range(3):
        mine = [line for line in done.stdout.splitlines() if line.startswith(f"[{rank}] ")]
        assert mine == [f"[{rank}] {i} {'x' * 50}" for i in range(20000)]


def test_line_without_end_is_not_lost() -> None:
    assert horonrun("-np", "1", "printf", "no end").stdout == "[0] no end\n"


def test_standard_input_goes_to_rank_0() -> None:
    command = command_line("-np", "2", "sh", "-c", "cat; echo end")
    done = subprocess.run(command, env=environment(), input="text\n",
                          capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert sorted(done.stdout.splitlines()) == ["[0] end", "[0] text", "[1] end"]


def on_a_terminal(answers: dict[bytes, Path], *arguments: str) -> str:
    """What a terminal receives. When it has received some words, whoever reads a pipe goes on."""
    ours, theirs = pty.openpty()
    command = command_line(*arguments)
    with subprocess.Popen(command, env=environment(TERM="xterm"), stdin=subprocess.DEVNULL,
                          stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        received = b""
        try:
            while part := os.read(ours, 4096):
                received += part
                for words in [words for words in answers if words in received]:
                    answers.pop(words).write_bytes(b"")
        except OSError:  # closed by the other side
            pass
        assert process.wait(LIMIT_S) == 0
    os.close(ours)
    return received.decode().replace("\r\n", "\n")


def test_progress_bar_on_a_terminal(tmp_path: Path) -> None:
    pipes = [tmp_path / "0", tmp_path / "1"]
    for pipe in pipes:
        os.mkfifo(pipe)
    body = """
        import os, sys
        pipe = os.path.join(sys.argv[1], os.environ["HORON_RANK"])
        if os.environ["HORON_RANK"] == "0":
            sys.stderr.write("\\r 10%"); open(pipe).read(); sys.stderr.write("\\r100%\\n")
        else:
            open(pipe).read(); print("other")
    """
    answers = {b" 10%": pipes[1], b"other": pipes[0]}
    command = ["python", "-c", textwrap.dedent(body), str(tmp_path)]
    received = on_a_terminal(answers, "-np", "2", *command)
    colour = {rank: f"\x1b[{code}m[{rank}] \x1b[0m" for rank, code in ((0, 36), (1, 33))}
    clear = "\r\x1b[K"
    # The other rank's line goes above, the unfinished one is drawn again, then finished.
    assert received == (
        f"{colour[0]} 10%"
        f"{clear}{colour[1]}other\n{colour[0]} 10%"
        f"{clear}{colour[0]}100%\n"
    )


# --- how it ends ----------------------------------------------------------------------------------


def test_exit_code_and_message_of_the_first_failing_rank(tmp_path: Path) -> None:
    go = tmp_path / "go"
    body = ("test $HORON_RANK = 1 && { echo 'the reason' >&2; exit 7; }; "
            f"until test -e {go}; do sleep 0.01; done; exit $HORON_RANK")
    command = command_line("-np", "4", "--verbose", "sh", "-c", body)
    said = ""
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            said += line
            if "rank 1 exited with code 7 (" in line:
                go.touch()
        assert process.wait(LIMIT_S) == 7, said
    assert "horonrun: rank 1 exited with code 7 (2 more failed after it)\n" in said, said
    assert said.endswith("    the reason\n"), said


def test_killed_rank() -> None:
    done = horonrun("-np", "2", "sh", "-c", "test $HORON_RANK = 0 || kill -9 $$")
    assert done.returncode == 128 + signal.SIGKILL
    assert "horonrun: rank 1 was killed by signal 9 (SIGKILL)" in done.stderr


def test_others_are_ended_after_the_grace_period() -> None:
    start = time.monotonic()
    done = horonrun("-np", "3", "--grace-period", "0.5", "sh", "-c",
                    "test $HORON_RANK = 0 && exit 3; sleep 100")
    assert done.returncode == 3
    assert 0.5 <= time.monotonic() - start < 10
    assert ("horonrun: ranks 1, 2 are still running 0.5 s after the first failure, and ended now "
            "(--grace-period)") in done.stderr


def test_deaf_ranks_are_killed() -> None:
    body = "test $HORON_RANK = 0 && exit 3; trap '' TERM; while :; do sleep 1; done"
    start = time.monotonic()
    done = horonrun("-np", "2", "--grace-period", "0", "sh", "-c", body)
    assert done.returncode == 3
    assert time.monotonic() - start < 10
    assert done.stderr.count("rank 1 is still running 0 s after") == 1


def test_what_a_rank_leaves_behind_is_ended(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    assert horonrun("-np", "1", "sh", "-c", f"sleep 100 & echo $! > {note}").returncode == 0
    assert wait_until(lambda: not alive(int(note.read_text())), 5)


def test_the_number_of_a_rank_that_has_ended_is_nobody_elses(tmp_path: Path) -> None:
    """Its group is still signalled: another process with that number would be hit."""
    note, go_on = tmp_path / "pid", tmp_path / "go on"
    os.mkfifo(go_on)
    body = f"if [ $HORON_RANK = 0 ]; then read line < '{go_on}'; else echo $$ > {note}; fi"
    with subprocess.Popen(command_line("-np", "2", "--verbose", "sh", "-c", body), text=True,
                          env=environment(), stderr=subprocess.PIPE) as process:
        while "rank 1 exited with code 0" not in process.stderr.readline():
            assert process.poll() is None
        ended = Path("/proc") / note.read_text().strip()
        there = ended.exists() and not alive(int(ended.name))
        go_on.write_text("\n")
        assert process.wait(LIMIT_S) == 0
    assert there and not ended.exists()


@pytest.mark.alone
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_ends_within_two_seconds(tmp_path: Path, number: int, code: int) -> None:
    mine = f"{tmp_path}/$HORON_RANK"
    body = (f"trap '' INT TERM; echo $$ > {mine}.part; mv {mine}.part {mine}; "
            "while :; do sleep 1; done")
    with subprocess.Popen(command_line("-np", "2", "sh", "-c", body), env=environment()) as process:
        assert wait_until(lambda: all((tmp_path / r).exists() for r in "01"), 20)
        start = time.monotonic()
        process.send_signal(number)
        assert process.wait(LIMIT_S) == code
        assert time.monotonic() - start < 2  # SIGKILL comes after 1.2 s
    assert not any(alive(int(path.read_text())) for path in tmp_path.iterdir())


def test_nothing_survives_a_killed_launcher(tmp_path: Path) -> None:
    # The rank is a shell, its child would live on; both are looked for.
    mine = f"{tmp_path}/$HORON_RANK"
    body = f"sleep 100 & echo $! $$ > {mine}.part; mv {mine}.part {mine}; wait"
    with subprocess.Popen(command_line("-np", "2", "sh", "-c", body), env=environment()) as process:
        assert wait_until(lambda: all((tmp_path / r).exists() for r in "01"), 20)
        process.kill()
    pids = [int(pid) for rank in "01" for pid in (tmp_path / rank).read_text().split()]
    assert len(pids) == 4
    assert wait_until(lambda: not any(alive(pid) for pid in pids), 1)


def test_a_killed_launcher_has_a_guard_of_another_name(tmp_path: Path) -> None:
    """pkill -9 horonrun kills what is called that."""
    horonrun_itself = tmp_path / "horonrun"
    horonrun_itself.write_text(f"#!{sys.executable}\nimport sys\nfrom launcher.main import main\n"
                               "sys.exit(main())\n")
    horonrun_itself.chmod(0o755)
    command = [str(horonrun_itself), "-np", "1", "bash", "-c", f"echo $$; sleep {100 + os.getpid()}; :"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        shell = int(process.stdout.readline().split()[1])
        assert wait_until(lambda: children_of(shell), 10)
        (sleeper,) = children_of(shell)
        names = {pid: Path(f"/proc/{pid}/comm").read_text().strip()
                 for pid in (process.pid, *children_of(process.pid))}
        assert names.pop(shell) == "bash" and sorted(names.values()) == ["horon-guard", "horonrun"]
        for pid, name in names.items():
            if name.startswith("horonrun"):
                os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not alive(sleeper), 5)


def children_of(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def test_limits_of_many_years() -> None:
    """More than a system call takes."""
    body = "[ $HORON_RANK = 0 ] && exit 3; sleep 1; exit 0"
    done = horonrun("-np", "2", "--grace-period", "3e6", "sh", "-c", body)
    assert done.returncode == 3 and "horonrun: rank 0 exited with code 3\n" in done.stderr, done


def test_an_interrupt_before_there_is_a_job(tmp_path: Path) -> None:
    """While Slurm does not answer."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\n> {tmp_path}/up; exec sleep 8\n")
    scontrol.chmod(0o755)
    slurm = environment(SLURM_JOB_NODELIST="n[1-2]", PATH=f"{tmp_path}:{os.environ['PATH']}")
    with subprocess.Popen(command_line("true"), env=slurm, stderr=subprocess.PIPE, text=True,
                          preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # nohup
                          ) as process:
        assert wait_until((tmp_path / "up").exists, 10)
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 130 and process.stderr.read() == ""


def test_closed_output_ends_the_job() -> None:
    command = command_line("-np", "2", "yes")
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() in (b"[0] y\n", b"[1] y\n")
        process.stdout.close()
        assert process.wait(LIMIT_S) == 128 + signal.SIGPIPE


# --- what is not started --------------------------------------------------------------------------


@pytest.mark.parametrize("arguments, code, words", [
    ([], 2, "-np is missing"),
    (["-np", "2"], 2, "command is missing"),
    (["-np", "0", "true"], 2, "'0' is not a number of ranks"),
    (["-np", "two", "true"], 2, "'two' is not a number of ranks"),
    (["-np", "2", "--no-such-option", "true"], 2, "unrecognized arguments: --no-such-option"),
    (["-np", "2", "--cycle-time-ms", "x", "true"], 2, "'x' is not a non-negative number"),
    (["-np", "2", "--log-level", "loud", "true"], 2, "'loud' is not a level; use one"),
    (["-np", "2", "--log-level", "info,disk=trace", "true"], 2, "'disk' is no part that logs"),
    (["-np", "2", "--host-timeout", "1", "true"], 2, "'1' is too short: at least 1.5 s"),
    (["top", "abc"], 2, "argument pid: invalid int value: 'abc' (horonrun top --help shows"),
    (["-np", "2", "/no/such/program"], 127, "no such program"),
    (["-np", "2", __file__], 127, "it is no program; a script needs its interpreter"),
    (["-H", "localhost:5000", "true"], 2, "-H offers 5000 slots, and a job has at most 4096 ranks"),
    (["--postmortem", "/nowhere"], 2, "neither flight recorders (rank-N.rec) nor a report"),
])
def test_mistakes_are_one_line(arguments: list[str], code: int, words: str) -> None:
    done = horonrun(*arguments)
    assert done.returncode == code
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("horonrun: ")
    assert words in done.stderr


def test_dry_run_starts_nothing(tmp_path: Path) -> None:
    done = horonrun("-np", "2", "--dry-run", "touch", str(tmp_path / "made"))
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all(f"HORON_RANK={r} " in lines[r] and "touch" in lines[r] for r in (0, 1))
    assert not (tmp_path / "made").exists()


def test_one_pretended_node_needs_no_mpi() -> None:
    done = horonrun("-np", "2", "sh", "-c", "echo $HORON_LOCAL_SIZE", HORON_LOCAL_SIZE="4")
    assert "[0] 4\n" in done.stdout
