"""horonrun on several hosts. The hosts are namespaces of this machine; the scenes that befall a job
are in world_scenes.py, the programs that the ranks run in bodies/."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import in_full_tier
from hosts import BODIES, HERE, WORLD, all_done, host_list, horonrun
from hosts import world as world  # a fixture
from launching import wait_until

WHO = """
import socket, horon
horon.init()
print("who", horon.rank(), socket.gethostname(), horon.local_rank(), horon.local_size(),
      horon.cross_rank(), horon.cross_size(), horon.transport(), flush=True)
print("done", horon.rank(), flush=True)
"""


# With one peer a round, those that do not meet h3 are through two seconds before it.
SLOW_LINK = """
import horon.torch as hvd, torch
hvd.init()
for _ in range(3):
    tensor = torch.full((500_000,), float(hvd.rank()))
    hvd.allreduce_(tensor, op=hvd.Gossip(topology="one_peer_exponential"), name="x")
print("done", hvd.rank(), flush=True)
"""


# --- that it is several hosts ---------------------------------------------------------------------


@pytest.mark.parametrize("hosts, each", [(2, 1), (2, 2), (4, 2), (8, 1)])
def test_ranks_live_on_the_hosts_that_were_named(world, hosts, each):
    """Guards all other tests here: a job that runs on one host by accident would pass them."""
    done = world(hosts, *horonrun("-H", host_list(hosts, each), "--no-prefix", "python", "-c", WHO))
    all_done(done, hosts * each)
    transport = "mpi" if each == 1 else "shm+mpi"
    want = {
        f"who {r} h{r // each + 1} {r % each} {each} {r // each} {hosts} {transport}"
        for r in range(hosts * each)
    }
    assert set(re.findall(r"^who .*$", done.out, re.MULTILINE)) == want, done.all


CONGESTION = """
import socket, subprocess, sys
there = subprocess.Popen(["on", "h2", sys.executable, "-c", "import socket\\n"
    "here = socket.create_server(('10.77.0.2', 7777)); print('up', flush=True)\\n"
    "taken = here.accept()[0]; print(taken.getsockopt(6, socket.TCP_CONGESTION, 16))"],
    stdout=subprocess.PIPE, text=True)
there.stdout.readline()
made = socket.create_connection(("10.77.0.2", 7777))
print(made.getsockopt(6, socket.TCP_CONGESTION, 16))
print(there.stdout.read())
"""


@pytest.mark.parametrize("asked, want", [({}, "cubic"), ({"WORLD_CONGESTION": "reno"}, "reno")])
def test_hosts_have_the_usual_congestion_control(world, asked, want):
    """Of both ends of a connection. A kernel's own may be another one; figures differ then."""
    known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    if want not in known:
        pytest.skip(f"this kernel has no {want}: {known}")
    done = world(2, sys.executable, "-c", CONGESTION, **asked)
    assert re.findall(r"b'(\w+?)\\", done.out) == [want, want], done.all


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run without root already")
def test_a_world_needs_no_root(world):
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are for their user only
        os.chmod(folder, 0o755)
        script = shutil.copy(WORLD, folder)
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        done = subprocess.run([*nobody, script, "2", "on", "h2", "hostname"], cwd="/", timeout=60,
                              capture_output=True, text=True, check=False)
    if "Operation not permitted" in done.stderr:
        pytest.skip(f"no namespaces without root: {done.stderr.strip()}")
    assert (done.returncode, done.stdout) == (0, "h2\n"), done


@pytest.mark.alone
@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGTERM"])
def test_nothing_is_left_of_a_world_that_is_killed(world, signal_name):
    """Not what left its session either, nor a network, nor a host."""
    spaces = ("net", "mnt", "uts", "pid", "ipc")
    tell = f"for n in {' '.join(spaces)}; do echo $n $(readlink /proc/self/ns/$n); done"
    sleeper = f"{tell}; echo up; exec sleep 1000"
    scene = f"setsid sh -c '{sleeper}' & on h2 setsid sh -c '{sleeper}' & wait"

    def around():
        links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True)
        return links.stdout, Path("/proc/self/mounts").read_text(), os.listdir("/run")

    def used():
        for space in spaces:
            for path in Path("/proc").glob(f"[0-9]*/ns/{space}"):
                with contextlib.suppress(OSError):
                    yield os.readlink(path)

    before = around()
    process = subprocess.Popen([WORLD, "2", "sh", "-c", scene], text=True, cwd="/",
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        seen = []
        while seen.count("up") < 2:
            line = process.stdout.readline()
            assert line, seen
            seen.append(line.strip())
        made = {line.split()[1] for line in seen if line != "up"}
        assert len(made) == 7 and made <= set(used())  # net and uts of each host, others in common
        process.send_signal(getattr(signal, signal_name))
        process.communicate(timeout=20)  # until nobody holds its output any more
        assert process.returncode != 0
    finally:
        process.kill()
    assert wait_until(lambda: not made & set(used()), 5), made & set(used())
    assert around() == before


def test_hosts_are_filled_in_order(world, tmp_path):
    hostfile = tmp_path / "hosts"
    hostfile.write_text("# two hosts\nh2 slots=2\n\nh1:2  # and one more\n")
    done = world(2, *horonrun("--hostfile", str(hostfile), "-np", "3", "sh", "-c", "hostname"))
    assert sorted(done.out.splitlines()) == ["[0] h2", "[1] h2", "[2] h1"], done.all


def test_ranks_get_environment_folder_and_input(world, tmp_path):
    """With values that no shell would leave alone; OMP_NUM_THREADS by the ranks of each host."""
    value = "a 'quoted' $word\nand a line"
    agent = tmp_path / "agent"  # as sshd does it, it hands no environment on
    agent.write_text(
        "#!/bin/sh\nhost=$1; shift\n"
        'exec env -i PATH="$PATH" HOME="$HOME" on $host /bin/sh -c "$*"\n'
    )
    agent.chmod(0o755)
    program = (
        "import os, sys; e = os.environ; print([os.getcwd(), e['MINE'], e['HORON_CACHE_CAPACITY'], "
        "'HORON_RANK' in e, sys.stdin.read()])"
    )
    shell = f'cd {tmp_path} && printf text | exec "$@"'
    done = world(
        2,
        "sh",
        "-c",
        shell,
        "sh",
        *horonrun(
            *("-H", "h1,h2", "--rsh-agent", str(agent), "--cache-capacity", "9"),
            *("python", "-c", program),
        ),
        MINE=value,
    )
    assert sorted(done.out.splitlines()) == [
        f"[0] {[str(tmp_path), value, '9', False, 'text']}",
        f"[1] {[str(tmp_path), value, '9', False, '']}",
    ], done.all


# --- how it ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "failure, culprit, code, sentence",
    [
        ("killed", 1, 137, "rank 1 was killed by signal 9 (SIGKILL)"),
        ("raising", 2, 1, "rank 2 raised ValueError: bad batch"),
    ],
)
def test_the_others_hear_what_became_of_a_rank(world, failure, culprit, code, sentence):
    """On its own host and on the other one; horonrun says it, too, and shows the last lines."""
    done = world(
        2,
        *horonrun("-H", "h1:2,h2:1", "python", str(BODIES / "failures.py")),
        HORON_TEST_FAILURE=failure,
    )
    assert done.code == code, done.all
    for rank in {0, 1, 2} - {culprit}:
        raised = re.search(rf"^\[{rank}\] rank {rank}: Horon\w+: (.*)$", done.out, re.MULTILINE)
        logged = re.findall(rf"^\[{rank}\] .* error runtime: (.*)$", done.err, re.MULTILINE)
        assert raised, done.all
        # Rank 0 shares host and memory with rank 1 and may see the end of it before its cause.
        beside = rank == 0 and culprit == 1 and raised[1].startswith("rank 1 ended without")
        assert sentence in [raised[1], *logged] or beside, done.all
    assert re.search(rf"^horonrun: {re.escape(sentence)}", done.err, re.MULTILINE), done.all
    assert failure == "killed" or "    ValueError: bad batch" in done.err, done.all


def test_the_report_has_the_recorders_of_all_hosts(world, tmp_path):
    """Of the rank that was killed, too; its keeper holds the memory."""
    done = world(
        2,
        *horonrun("-H", "h1:1,h2:2", "python", str(BODIES / "failures.py")),
        HORON_TEST_FAILURE="killed",
        HORON_POSTMORTEM_DIR=str(tmp_path),
    )
    (report,) = tmp_path.glob("*/report.txt")
    text = report.read_text(encoding="utf-8")
    for rank, host in enumerate(("h1", "h2", "h2")):
        own = text.split(f"\nrank {rank} on {host}, process ")[1].split("\nrank ")[0]
        assert re.search(r"finished +0/allreduce.first \(1 tensors\)", own), text
        timeline = (report.parent / f"rank-{rank}.txt").read_text(encoding="utf-8")
        assert re.search(r"joined +(shm\+)?mpi, negotiating over mpi", timeline), done.all


@in_full_tier
def test_when_rank_0_is_stuck_one_rank_says_who_of_all_hosts_lacks_a_tensor(world, tmp_path):
    fifos = {name: str(tmp_path / name) for name in ("held", "held.go", "loads")}
    for fifo in fifos.values():
        os.mkfifo(fifo)
    reader = os.open(fifos["held"], os.O_RDONLY | os.O_NONBLOCK)
    done = world(
        2,
        *horonrun("-H", host_list(2, 2), "--no-prefix", "--grace-period", "30", "python",
                  str(BODIES / "rank_0_stands.py")),
        HORON_LEND="0", HORON_STALL_SILENCE_SECONDS="15", STANDS=fifos["held"],
        LOADS=fifos["loads"], LACKS="1", FEEDS="3",
    )
    os.close(reader)
    (said,) = re.findall(r"horon\[[123]\] warn\w* watchdog: (.*)", done.all)
    assert re.search(
        r"rank 0, which is on another host, has not answered for .*; the runtime of rank 0 does "
        r"not move: its thread \d+ \(horon\) sleeps.*'allreduce.late': submitted by ranks 0, 2, 3 "
        r".*; missing: rank 1 is busy; .* at rank_0_stands.py:\d+ in load", said), done.all


def test_exit_code_of_the_first_failing_rank(world):
    body = "test $OMPI_COMM_WORLD_RANK = 2 && { echo 'the reason' >&2; exit 7; }; exec sleep 1000"
    done = world(2, *horonrun("-H", "h1:2,h2:1", "--grace-period", "0.5", "sh", "-c", body))
    assert done.code == 7, done.all
    assert "horonrun: rank 2 exited with code 7 (2 more failed after it)\n" in done.err
    assert done.err.endswith("    the reason\n")
    assert done.seconds < 30


def test_rank_that_cannot_be_started(world, tmp_path):
    """The program is on one host only (file systems differ), or may not be run."""
    program = tmp_path / "program"
    program.write_text("no program at all")
    program.chmod(0o755)
    done = world(2, *horonrun("-H", "h1,h2", str(program)))
    assert done.code == 126, done.all
    words = f"could not be started on host h.: .{re.escape(str(program))}.: Exec format error"
    assert re.search(words, done.err), done.all


def test_long_output_is_whole_and_in_order(world):
    """More than fits into any buffer, from all ranks at once, read slowly."""
    program = "for i in range(40000): print(i, 'x' * 90)"
    shell = (
        'exec "$@" | python3 -c \'import sys, time; t = sys.stdin.read(1); time.sleep(3); '
        "sys.stdout.write(t + sys.stdin.read())'"
    )
    done = world(
        2,
        "bash",
        "-o",
        "pipefail",
        "-c",
        shell,
        "sh",
        *horonrun("-H", "h1:1,h2:1", "--host-timeout", "1.5", "python", "-c", program),
    )
    assert done.code == 0, done.err
    for rank in range(2):
        mine = [line for line in done.out.splitlines() if line.startswith(f"[{rank}] ")]
        assert mine == [f"[{rank}] {i} {'x' * 90}" for i in range(40000)]


def scene(world, name: str) -> dict:
    done = world(2, sys.executable, str(HERE / "world_scenes.py"), name)
    assert done.code == 0, done.all
    seen = json.loads(done.out)
    assert seen["left"] == [], seen
    return seen


@pytest.mark.alone
@pytest.mark.parametrize("ranks", ["", "_deaf", "_deaf_and_loud", "_in_a_collective"])
def test_interrupt_ends_within_two_seconds(world, ranks):
    seen = scene(world, f"interrupted{ranks}")
    assert seen["code"] == 130 and seen["gone_after"] < 2 and seen["files"] == [], seen


@pytest.mark.alone
@pytest.mark.parametrize("what", ["lost_host", "stopped_keeper"])
def test_interrupt_ends_within_two_seconds_where_nobody_answers(world, what):
    """What is on a host that cannot be told ends when that notices, within --host-timeout."""
    seen = scene(world, f"interrupted_with_a_{what}")
    assert seen["code"] == 130 and seen["seconds"] < 2.2 and seen["files"] == [], seen


def test_interrupt_while_starting(world):
    seen = scene(world, "interrupted_while_starting")
    assert seen["code"] == 143 and seen["seconds"] < 2 and seen["gone_after"] < 4, seen


def test_what_left_its_rank_ends_with_the_job(world):
    seen = scene(world, "well_ended")
    assert seen["code"] == 0 and len(seen["notes"]) == 3 and seen["gone_after"] < 2, seen


def test_nothing_survives_a_killed_launcher(world):
    seen = scene(world, "killed_launcher")
    assert seen["gone_after"] < 4 and seen["files"] == [], seen


def test_shared_memory_files_have_names_of_their_job(world):
    """Those can be removed for a rank that ends while it starts; of a common one nobody knows."""
    seen = scene(world, "shared_memory_files")
    assert seen["code"] == 0 and len(seen["made"]) == 4, seen
    assert all(re.fullmatch(r"sm_segment\.h[12]\..*\.[01]", name) for name in seen["made"]), seen


def test_killed_keeper(world):
    seen = scene(world, "killed_keeper")
    assert seen["code"] == 1 and seen["gone_after"] < 10, seen
    assert "horonrun: lost contact with rank 2 on host h2 (" in seen["output"], seen


@pytest.mark.parametrize("name", ["killed_daemon", "killed_mpirun"])
def test_killed_mpi_daemon(world, name):
    """mpirun itself may say that all is well."""
    seen = scene(world, name)
    assert seen["code"] not in (0, None) and seen["gone_after"] < 10, seen
    assert re.search(r"^horonrun: (rank \d was ended|lost contact with)", seen["output"], re.M), (
        seen
    )


def test_stopped_keeper(world):
    """Its host answers, so it may only be starved: it gets longer than a host that is silent."""
    seen = scene(world, "stopped_keeper")
    assert seen["code"] == 1 and 6 < seen["seconds"] and seen["gone_after"] < 25, seen
    sentence = "lost contact with the keeper of rank 2 on host h2 (stopped or starved for 6 s)"
    assert f"horonrun: {sentence} (" in seen["output"], seen


@pytest.mark.alone
def test_cut_link(world):
    """Both sides notice and say so to their ranks; nothing stays on the host that is cut off."""
    seen = scene(world, "cut_link")
    assert seen["code"] == 1, seen
    assert 4 <= seen["seconds"] < 25 and seen["gone_after"] < 30, seen
    lost = r"lost contact with host h2, where rank [23] ran \(nothing heard for 4 s\)"
    assert re.search(rf"^horonrun: {lost} \(3 more failed after it\)$", seen["output"], re.M), seen
    notes = seen["notes"]
    assert max(seen["heard_after"].values()) < 5, seen
    for rank in (0, 1):
        assert re.search(lost, notes[f"rank-{rank}"]), seen
    for rank in (2, 3):
        assert (
            "lost contact with horonrun on h1 (nothing heard for 4 s)" in notes[f"rank-{rank}"]
        ), seen


def test_a_slow_link_is_no_divergence(world):
    """Who is through has submitted the next run while the last one is under way elsewhere."""
    done = world(4, *horonrun("-H", host_list(4, 1), "--no-prefix", "python", "-c", SLOW_LINK),
                 WORLD_RATE_3="8mbit")
    all_done(done, 4)


def test_bridges_with_one_address(world):
    """docker0 is 172.17.0.1 on each host; MPI waited for ever for a neighbor that was itself."""
    seen = scene(world, "same_bridges")
    assert seen["code"] == 0, seen
    assert seen["output"].count("tensor(1048576.)") == 2, seen
    for host in ("h1", "h2"):
        assert f"horonrun: host {host}: MPI leaves out docker0, with an address that" in (
            seen["output"]
        ), seen


def test_top_shows_the_ranks_of_all_hosts(world):
    """Where horonrun runs; on another host those that are there, as one job."""
    seen = scene(world, "top")
    title, columns, *rows = seen["here"].splitlines()
    assert title == f"job of process {seen['launcher']}" and columns.split()[1] == "host", seen
    assert [row.split()[:2] for row in rows] == [
        ["0", "h1"], ["1", "h1"], ["2", "h2"], ["3", "h2"]], seen
    assert all("waits for 'allreduce.late' since" in row for row in rows[:3]), seen
    assert "waits for" not in rows[3], seen
    assert float(rows[3].split()[5]) > float(rows[0].split()[5]), seen  # is waited for
    # All hosts of a world share /proc, so those of h1 are found on h2 as well.
    rows = seen["there"].split("\n\n")[-1].splitlines()[2:]
    assert [row.split()[0] for row in rows] == ["2", "3"], seen
    rows = seen["stopped"].split("\n\n")[0].splitlines()[2:]
    assert len(rows) == 4 and sum(row.endswith("does not answer") for row in rows) == 1, seen
    assert "waits for 'allreduce.late' since" in rows[0] and seen["took"] < 10, seen
    assert seen["again"].count("waits for 'allreduce.late'") == 3, seen
    assert seen["after"] == "", seen


# --- who may talk to it ---------------------------------------------------------------------------


def test_secret_is_not_shown(world):
    seen = scene(world, "secret")
    assert seen["bytes"] == 32 and seen["shown"] == [] and not seen["in_rank"], seen


def test_listens_only_where_the_hosts_are(world):
    assert scene(world, "listeners")["listening"] == ["10.77.0.1"]
