"""horonrun before it reaches any host: options, hostfiles, Slurm, what it hands to mpirun.
hosts_test.py has the jobs themselves."""

from __future__ import annotations

import os
import socket
import stat
import sys
import threading
import time
from pathlib import Path

import pytest
from launching import ROOT, horonrun

sys.path.insert(0, str(ROOT))

from launcher import hosts  # noqa: E402
from launcher.interfaces import common_to_hosts  # noqa: E402
from launcher.refusal import Refusal  # noqa: E402
from launcher.variables import travels  # noqa: E402


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def mpi_home(tmp_path: Path) -> str:
    """An mpirun that says what Open MPI's says, and how it is called."""
    executable(
        tmp_path / "bin" / "mpirun",
        """#!/bin/sh
        [ "$1" = --version ] && { echo 'mpirun (Open MPI) 5.0.11'; exit; }
        echo "pml=$OMPI_MCA_pml arguments: $*"; echo '-----'; exit 3
    """,
    )
    return str(tmp_path)


# --- which hosts ----------------------------------------------------------------------------------


def test_hosts_of_a_list() -> None:
    assert hosts.from_list("h1:2, h2,h1:1") == [hosts.Host("h1", 3), hosts.Host("h2", 1)]


def test_hostfile(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("\n# comment\nh1 slots=2\nh2:3   # both ways\n  h3\nh4 max_slots = 4\n"
                    "h5 slots=2 max_slots=6\n")
    assert hosts.from_file(str(path)) == [
        hosts.Host("h1", 2),
        hosts.Host("h2", 3),
        hosts.Host("h3", 1),
        hosts.Host("h4", 4),
        hosts.Host("h5", 2),
    ]


@pytest.mark.parametrize(
    "line", ["h3 slot=2", "h3:two", "h3 2", "h3 slots=", "-oProxyCommand=x", "h3:1:2"]
)
def test_typo_in_a_hostfile_is_shown(tmp_path: Path, line: str) -> None:
    path = tmp_path / "file"
    path.write_text(f"# hosts\nh1:1\n{line}\n")
    done = horonrun("--hostfile", str(path), "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"horonrun: {path}, line 3: '{line}' is not a host; write 'h1 slots=2' or 'h1:2'\n"
    )


@pytest.mark.parametrize(
    "arguments, words",
    [
        (
            ["-H", "localhost:2", "-np", "3", "true"],
            "-np 3 asks for more ranks than the 2 slots that -H offers",
        ),
        (["-H", "localhost:2"], "command is missing"),
        (["-H", "a:b", "true"], "'a:b' is not HOST or HOST:SLOTS"),
        (["-H", "localhost:0", "true"], "host localhost has no slot"),
        (["--hosts=-oProxyCommand=x", "true"], "is not HOST or HOST:SLOTS"),
        (["-H", "no-such-host.invalid:2", "true"], "host no-such-host.invalid cannot be resolved"),
        (
            ["--hostfile", "/no/such/file", "true"],
            "cannot read the hostfile /no/such/file: No such file",
        ),
        (["--hostfile", "/dev/null", "true"], "the hostfile /dev/null names no host"),
        (["-H", "a", "--hostfile", "b", "true"], "-H and --hostfile both"),
        (
            ["-H", "192.0.2.9:1", "--rsh-agent", "ssh '", "true"],
            "--rsh-agent 'ssh '': No closing quotation",
        ),
        (
            ["-np", "2", "--network-interfaces", "ib7", "true"],
            "has no such interface with an address; it has lo",
        ),
        (["-np", "2", "--network-interfaces", "lo,ib7", "true"], "--network-interfaces ib7: host"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], words: str) -> None:
    done = horonrun(*arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("horonrun: ")
    assert words in done.stderr


@pytest.mark.parametrize("name", ["PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent"])
def test_a_remote_shell_that_cannot_be_read_is_one_line(name: str) -> None:
    done = horonrun("-H", "192.0.2.9:1", "true", **{name: '"'})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"horonrun: {name} '\"': No closing quotation\n"


def test_hosts_that_are_this_machine_need_no_mpi() -> None:
    done = horonrun("-H", f"localhost:1,{socket.gethostname()}:1", "sh", "-c", "echo $HORON_RANK")
    assert sorted(done.stdout.splitlines()) == ["[0] 0", "[1] 1"], done.stderr


def test_hosts_are_filled_in_order() -> None:
    offered = [hosts.Host("a", 2), hosts.Host("b", 2), hosts.Host("c", 1)]
    assert hosts.place(offered, 3, "") == [hosts.Host("a", 2), hosts.Host("b", 1)]
    assert hosts.place(offered, None, "") == offered
    with pytest.raises(
        Refusal, match=r"6 asks for more ranks than the 5 slots that X \(a:2, b:2, c:1\)"
    ):
        hosts.place(offered, 6, "X")


def test_slow_names_are_not_waited_for(monkeypatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(hosts, "resolved", lambda name: answered.wait(30) and [])
    start = time.monotonic()
    with pytest.raises(Refusal, match="host slow cannot be resolved"):
        hosts.check_names([hosts.Host("slow", 1)], 0.2)
    answered.set()
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    "text, tasks",
    [
        ("2(x3),1", [2, 2, 2, 1]),
        ("4", [4]),
        ("1,2(x2)", [1, 2, 2]),
        ("", []),
        ("2(x", []),
        ("x", []),
    ],
)
def test_tasks_per_node(text: str, tasks: list[int]) -> None:
    assert hosts.tasks_per_node(text) == tasks


# --- in what it is started ------------------------------------------------------------------------


def test_slurm_allocation(tmp_path: Path, mpi_home: str) -> None:
    """Of hosts that are there under other names: three addresses of this machine do not count."""
    executable(
        tmp_path / "bin" / "scontrol", "#!/bin/sh\necho $* >&2; echo 192.0.2.8; echo 192.0.2.9\n"
    )
    slurm = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node[8-9]",
        "SLURM_TASKS_PER_NODE": "2(x2)",
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "MPI_HOME": mpi_home,
    }
    done = horonrun("--verbose", "--dry-run", "true", **slurm)
    assert "found Slurm job 7 on node[8-9]; mpirun (Open MPI) 5.0.11 at" in done.stderr
    assert "used: 4 ranks on 192.0.2.8:2, 192.0.2.9:2, started through mpirun" in done.stderr
    assert "-np 4 --bind-to none --host 192.0.2.8:2,192.0.2.9:2 --map-by slot" in done.stdout
    done = horonrun("--dry-run", "true", **slurm)
    assert done.stderr == "horonrun: Slurm job 7: 4 ranks on 192.0.2.8:2, 192.0.2.9:2\n"
    assert " SLURM_TASKS_PER_NODE=2,2 " in done.stdout
    done = horonrun("-H", "192.0.2.9:3", "--dry-run", "true", **slurm)
    assert " SLURM_TASKS_PER_NODE=1,3 " in done.stdout  # mpirun would start two there at most
    done = horonrun("-H", "192.0.2.7:3", "--dry-run", "true", **slurm)
    assert "SLURM_TASKS_PER_NODE" not in done.stdout and done.returncode == 0
    done = horonrun("-np", "5", "true", **slurm)
    assert (
        "-np 5 asks for more ranks than the 4 slots that the Slurm allocation offers" in done.stderr
    )
    done = horonrun("true", **{**slurm, "SLURM_TASKS_PER_NODE": "2"})
    assert "SLURM_TASKS_PER_NODE=2 does not fit the 2 hosts" in done.stderr
    done = horonrun("true", **{**slurm, "SLURM_TASKS_PER_NODE": "1", "SLURM_STEP_ID": "0"})
    assert "SLURM_TASKS_PER_NODE=1 (a step of srun's has its own) does not fit" in done.stderr
    assert done.stderr.endswith("with -H, as in -H 192.0.2.8:2,192.0.2.9:2\n")


def test_a_job_in_a_rank_of_another(needs_mpi) -> None:
    """Its ranks are its own, and do not take themselves for the one that started it."""
    inner = [sys.executable, "-m", "launcher", "--mpi", "-np", "2", "--no-prefix"]
    say = ("import os; e = os.environ; print(e['OMPI_COMM_WORLD_RANK'], e['OMPI_COMM_WORLD_SIZE'], "
           "e.get('HORON_RANK'), e.get('HORON_SIZE'))")
    done = horonrun("-np", "1", "--no-prefix", *inner, "python", "-c", say)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 2 None None", "1 2 None None"]


def test_slurm_without_scontrol() -> None:
    done = horonrun("-np", "2", "true", SLURM_JOB_NODELIST="node[1-2]", PATH="/nowhere")
    assert done.returncode == 2 and "'scontrol show hostnames' does not say" in done.stderr


def test_slurm_allocation_of_this_machine_takes_any_number(tmp_path: Path) -> None:
    executable(tmp_path / "scontrol", "#!/bin/sh\necho localhost\n")
    done = horonrun(
        "-np",
        "3",
        "sh",
        "-c",
        "echo $HORON_RANK",
        SLURM_JOB_NODELIST="x",
        SLURM_TASKS_PER_NODE="1",
        PATH=f"{tmp_path}:{os.environ['PATH']}",
    )
    assert len(done.stdout.splitlines()) == 3, done.stderr


@pytest.mark.parametrize(
    "variables, launcher",
    [
        ({"OMPI_COMM_WORLD_RANK": "1"}, "Open MPI's mpirun (OMPI_COMM_WORLD_RANK=1)"),
        ({"PMI_RANK": "0"}, "a PMI launcher"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "srun (SLURM_STEP_NUM_TASKS=4)"),
        ({"SLURM_STEP_NUM_TASKS": "4", "PMIX_RANK": "0"}, "srun (SLURM_STEP_NUM_TASKS=4)"),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_JOB_NODELIST": "n[1-2]"}, "srun"),
        # On another node, where srun has started mpirun's daemon.
        ({"SLURM_STEP_NUM_TASKS": "1", "OMPI_COMM_WORLD_RANK": "1"}, "Open MPI's mpirun"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "torchrun (TORCHELASTIC_RUN_ID=none)"),
    ],
)
def test_nested_jobs_are_refused(variables: dict[str, str], launcher: str) -> None:
    done = horonrun("-np", "2", "true", **variables)
    assert done.returncode == 2 and f"this process was started by {launcher}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "own, other, common",
    [
        ({"lo": ["127.0.0.1"], "eth0": ["10.0.0.1"], "docker0": ["172.17.0.1"]},
         {"lo": ["127.0.0.1"], "ens3": ["10.0.0.2"], "br0": ["172.17.0.1"]}, ["docker0"]),
        ({"eth0": ["10.0.0.1"], "ib0": ["10.1.0.1"]}, {"eth0": ["10.0.0.2"]}, []),
        ({"eth0": ["10.0.0.1"]}, {"eth0": ["10.0.0.1"]}, []),  # nothing would be left
    ],
)
def test_interfaces_that_lead_nowhere(own, other, common) -> None:
    assert common_to_hosts("h1", {"h1": own, "h2": other}) == common


def test_a_shell_under_srun_is_no_rank() -> None:
    variables = {"SLURM_STEP_NUM_TASKS": "1", "PMI_RANK": "0"}
    assert horonrun("-np", "1", "true", **variables).returncode == 0


# --- what mpirun gets -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, changes, controller",
    [
        (["--mpi"], {}, "HORON_CONTROLLER=mpi"),
        ([], {"HORON_CONTROLLER": "mpi"}, "HORON_CONTROLLER=mpi"),
        ([], {"HORON_LOCAL_SIZE": "2"}, ""),
    ],
)
def test_mpi_jobs_go_through_mpirun(mpi_home: str, arguments, changes, controller: str) -> None:
    done = horonrun(*arguments, "-np", "4", "--dry-run", "true", MPI_HOME=mpi_home, **changes)
    line, keeper = done.stdout.splitlines()
    assert "OMPI_MCA_btl=self,sm,tcp " in line and "OMPI_MCA_pml=ob1 " in line
    assert "OMPI_MCA_btl_tcp_flags=send,inplace," in line  # a put to a rank that dies hangs
    assert f"{mpi_home}/bin/mpirun -np 4 --bind-to none --oversubscribe --with-ft ulfm " in line
    assert line.endswith("-m launcher.keeper")
    assert controller in keeper and keeper.endswith(" true")


def test_mpirun_that_fails_is_heard(mpi_home: str) -> None:
    done = horonrun("-np", "2", "--mpi", "true", MPI_HOME=mpi_home)
    assert (done.returncode, done.stdout) == (2, "")
    first, *rest = done.stderr.splitlines()
    assert first == "horonrun: mpirun ended with code 3 before all ranks had started; it said:"
    assert len(rest) == 1 and rest[0].startswith("    pml=ob1 arguments: -np 2 ")


ENDED_BY_MPI = """
from mpi4py import MPI
MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_ARE_FATAL)
MPI.COMM_WORLD.Send(bytearray(1), dest=99)
"""


def test_why_mpi_has_ended_a_rank_is_said(needs_mpi) -> None:
    """It tells mpirun, and not the rank's own output."""
    done = horonrun("--mpi", "-np", "1", "python", "-c", ENDED_BY_MPI)
    assert "horonrun: rank 0 exited with code " in done.stderr, done.stderr
    said = done.stderr.split("horonrun: what MPI said:\n")[1]
    assert "An error occurred in MPI_Send" in said and "MPI_ERR_RANK: invalid rank" in said


def test_another_mpirun_is_refused(tmp_path: Path) -> None:
    executable(tmp_path / "bin" / "mpirun", "#!/bin/sh\necho 'HYDRA build details:'\n")
    done = horonrun("-np", "2", "--mpi", "true", MPI_HOME=str(tmp_path))
    assert done.returncode == 2 and "is not Open MPI's ('HYDRA build details:')" in done.stderr


def test_shared_memory_cannot_negotiate_between_hosts() -> None:
    done = horonrun("-H", "localhost:1,192.0.2.9:1", "true", HORON_CONTROLLER="shm")
    assert done.returncode == 2 and "unset HORON_CONTROLLER=shm" in done.stderr


def test_which_variables_travel() -> None:
    assert all(
        map(travels, ["HORON_LOG", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "LANG", "MY_KEY"])
    )
    assert not any(
        map(
            travels,
            [
                "HOME",
                "PMIX_RANK",
                "OMPI_MCA_pml",
                "SSH_AUTH_SOCK",
                "HORON_RANK",
                "PATH",
                "SLURM_NODEID",
                "HOSTNAME",
            ],
        )
    )
