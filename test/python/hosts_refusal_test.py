"""Jobs on several hosts that horonrun does not start: one line says why, and names the host."""

from __future__ import annotations

import os
import re
from pathlib import Path

import horon
from hosts import horonrun
from hosts import world as world  # a fixture


def refused(done, *words: str) -> None:
    assert done.code == 2 and done.out == "", done.all
    lines = done.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("horonrun: "), done.all
    assert all(word in lines[0] for word in words), done.all


def test_host_that_cannot_be_reached(world):
    shell = 'echo 10.77.0.99 h99 >> /etc/hosts; exec "$@"'
    done = world(2, "sh", "-c", shell, "sh", *horonrun("-H", "h1:1,h99:1", "true"))
    refused(done, "host h99 cannot be reached", "no host h99 in this world")


def test_host_that_does_not_answer(world):
    shell = 'on h2 ip link set eth0 down; exec "$@"'
    done = world(
        2, "sh", "-c", shell, "sh", *horonrun("-H", "h1:1,h2:1", "--start-timeout", "10", "true")
    )
    refused(done, "host h2: the MPI daemon (prted) started there could not report to mpirun on h1")
    assert done.seconds < 15


def test_remote_shell_that_hangs(world, tmp_path):
    agent = tmp_path / "agent"
    agent.write_text("#!/bin/sh\nexec sleep 1000\n")
    agent.chmod(0o755)
    done = world(
        2, *horonrun("-H", "h1:1,h2:1", "--rsh-agent", str(agent), "--start-timeout", "2", "true")
    )
    refused(done, "host h2 cannot be reached", "no answer within 5 s")
    assert done.seconds < 15


def test_keeper_that_does_not_get_through(world, tmp_path):
    """The daemon starts, but nothing from h2 reaches horonrun: its Python does not come up."""
    agent = tmp_path / "agent"
    agent.write_text(
        "#!/bin/sh\nhost=$1; shift\n"
        f"printf 'import time; time.sleep(1000)' > {tmp_path}/sitecustomize.py\n"
        f'exec on $host sh -c "$*"\n'
    )
    agent.chmod(0o755)
    done = world(
        2,
        *horonrun("-H", "h2:1", "--rsh-agent", str(agent), "--start-timeout", "3", "true"),
        PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}",
    )
    refused(done, "host h2 did not answer within 3 s (--start-timeout)", "10.77.0.1 port")
    assert done.seconds < 15


def test_host_that_nobody_knows(world):
    refused(world(2, *horonrun("-H", "h1:1,nowhere:1", "true")), "host nowhere cannot be resolved")


def test_interface_that_a_host_has_not(world):
    rename = (
        "on h2 ip link set eth0 down && on h2 ip link set eth0 name net0 && "
        'on h2 ip link set net0 up; exec "$@"'
    )
    done = world(
        2,
        "sh",
        "-c",
        rename,
        "sh",
        *horonrun("-H", "h1,h2", "--network-interfaces", "eth0", "true"),
    )
    refused(done, "host h2 has no interface eth0", "net0 (10.77.0.2")
    # Each host takes those that it has.
    done = world(
        2,
        "sh",
        "-c",
        rename,
        "sh",
        *horonrun(
            "-H",
            "h1,h2",
            "--network-interfaces",
            "eth0,net0",
            "sh",
            "-c",
            "echo $OMPI_MCA_btl_tcp_if_include",
        ),
    )
    assert sorted(done.out.splitlines()) == ["[0] eth0", "[1] net0"], done.all


def test_interface_that_no_host_has(world):
    done = world(2, *horonrun("-H", "h1,h2", "--network-interfaces", "ib7", "true"))
    refused(done, "host h1 has no such interface", "eth0 (10.77.0.1")
    done = world(2, *horonrun("-H", "h1,h2", "--network-interfaces", "eth0,ib7", "true"))
    refused(done, "no host has an interface ib7 with an address; h1 has", "h2 has")


def test_hosts_with_different_versions(world, tmp_path):
    """Host h2 sees another METADATA of the installed package: its remote shell mounts it there."""
    # Beside the package: an egg-info in the working directory would hide it from importlib.
    [installed] = Path(horon.__file__).parent.parent.glob("horon-*.dist-info/METADATA")
    other = tmp_path / "METADATA"
    other.write_text(re.sub(r"(?m)^Version: .*$", "Version: 99.0", Path(installed).read_text()))
    agent = tmp_path / "agent"
    agent.write_text(
        "#!/bin/sh\nhost=$1; shift\n"
        f"exec on $host unshare --mount sh -c 'mount --bind {other} {installed}; '\"$*\"\n"
    )
    agent.chmod(0o755)
    done = world(2, *horonrun("-H", "h1:1,h2:1", "--rsh-agent", str(agent), "true"))
    refused(done, f"host h2 has Horon 99.0, this one has {horon.__version__}")


def test_names_that_mean_one_host(world):
    """mpirun would put all ranks there, and hosts would be counted that do not exist."""
    shell = 'echo 10.77.0.2 alias >> /etc/hosts; exec "$@"'
    done = world(2, "sh", "-c", shell, "sh", *horonrun("-H", "h2:1,alias:1", "true"))
    assert done.code == 2 and "horonrun: " in done.err, done.all


def test_nested_in_a_rank(world):
    done = world(2, *horonrun("-H", "h1:1,h2:1", "--no-prefix", *horonrun("-np", "1", "true")))
    assert done.code == 2, done.all
    assert "this process was started by Open MPI's mpirun (OMPI_COMM_WORLD_RANK=" in done.err
