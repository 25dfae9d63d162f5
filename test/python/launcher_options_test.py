"""horonrun's options: those of horovodrun by their names, the config file, completions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launching import command_line, environment, horonrun

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from launcher import arguments, config_file, options  # noqa: E402
from launcher.refusal import Refusal  # noqa: E402

# All of horovodrun's, with a value where they take one.
HOROVODRUN = """
-v --version|-np 2|--num-proc 2|-cb|--check-build|--disable-cache|--start-timeout 9|
--network-interfaces lo|--network-interface lo|--output-filename d|--verbose|--config-file c|
-p 22|--ssh-port 22|-i k|--ssh-identity-file k|--fusion-threshold-mb 1|--cycle-time-ms 1|
--cache-capacity 1|--hierarchical-allreduce|--no-hierarchical-allreduce|--hierarchical-allgather|
--no-hierarchical-allgather|--torus-allreduce|--no-torus-allreduce|--autotune|--no-autotune|
--autotune-log-file f|--autotune-warmup-samples 1|--autotune-steps-per-sample 1|
--autotune-bayes-opt-max-samples 1|--autotune-gaussian-process-noise 0.5|--min-np 1|
--min-num-proc 1|--max-np 1|--max-num-proc 1|--slots-per-host 1|--elastic-timeout 1|
--reset-limit 1|--blacklist-cooldown-range 1 2|--timeline-filename f|--timeline-mark-cycles|
--no-timeline-mark-cycles|--no-stall-check|--stall-check|--stall-check-warning-time-seconds 1|
--stall-check-shutdown-time-seconds 1|--mpi-threads-disable|--no-mpi-threads-disable|
--mpi-args=-x|--tcp|--binding-args=-x|--num-nccl-streams 1|--thread-affinity 0,1|
--gloo-timeout-seconds 1|--log-level INFO|--log-with-timestamp|--log-without-timestamp|
-prefix-timestamp|--prefix-output-with-timestamp|--log-hide-timestamp|--no-log-hide-timestamp|
-H h:1|--hosts h:1|-hostfile f|--hostfile f|--host-discovery-script s|--gloo|--mpi|--jsrun
"""


def parse(*argv: str, **variables: str) -> options.Options:
    return options.parse(list(argv), variables)


@pytest.mark.parametrize("words", [w.strip() for w in HOROVODRUN.replace("\n", "").split("|")])
def test_every_option_of_horovodrun_is_known(words: str) -> None:
    try:
        arguments.parser().parse_args(words.split())
    except Refusal as refusal:
        assert "unrecognized" not in str(refusal) and "expected" not in str(refusal)
        assert "is for elastic jobs" in str(refusal) or "run the program with jsrun" in str(refusal)
    except SystemExit:
        assert "version" in words


def test_options_set_variables() -> None:
    found = parse(
        "-np", "2", "--fusion-threshold-mb", "0.3", "--stall-check-warning-time-seconds", "7",
        "--stall-check-shutdown-time-seconds", "0", "--no-stall-check", "--log-without-timestamp",
        "--tcp", "--gloo", "--cache-capacity", "0", "--no-hierarchical-allreduce", "true",
    )  # fmt: skip
    assert found.variables == {
        "HORON_FUSION_THRESHOLD": "314573",
        "HORON_STALL_CHECK_TIME_SECONDS": "7",
        "HORON_STALL_SHUTDOWN_TIME_SECONDS": "0",
        "HORON_STALL_CHECK_DISABLE": "1",
        "HORON_LOG_HIDE_TIME": "1",
        "NCCL_IB_DISABLE": "1",
        "HORON_CONTROLLER": "shm",
        "HORON_CACHE_CAPACITY": "0",
        "HORON_HIERARCHICAL": "0",
    }
    assert parse("-np", "2", "--hierarchical-allreduce", "true").variables == {
        "HORON_HIERARCHICAL": "1"
    }
    assert parse("-np", "2", "--no-stall-check", "--stall-check", "true").variables == {
        "HORON_STALL_CHECK_DISABLE": "0"
    }


def test_options_of_autotuning() -> None:
    found = parse(
        "-np", "2", "--autotune", "--autotune-log-file", "a b.csv", "--autotune-warmup-samples",
        "0", "--autotune-steps-per-sample", "20", "--autotune-file", "tuned", "true",
        "--autotune-max-samples", "7",
    )  # fmt: skip
    assert found.variables == {
        "HORON_AUTOTUNE": "1",
        "HORON_AUTOTUNE_LOG": "a b.csv",
        "HORON_AUTOTUNE_WARMUP_SAMPLES": "0",
        "HORON_AUTOTUNE_STEPS_PER_SAMPLE": "20",
        "HORON_AUTOTUNE_FILE": "tuned",
    }
    assert found.command == ["true", "--autotune-max-samples", "7"] and not found.remarks
    assert parse("-np", "2", "--autotune-file", "tuned", "true").remarks == []
    of_samples = ("-np", "2", "--autotune-log-file", "a", "--autotune-file", "b", "true")
    said = "HORON_AUTOTUNE_LOG set without --autotune: nothing is tuned"
    assert parse(*of_samples).remarks == [said]
    assert parse(*of_samples, HOROVOD_AUTOTUNE="1").remarks == []
    assert parse("--no-autotune", *of_samples).remarks == []
    of_horovod = ("--autotune-bayes-opt-max-samples", "5", "--autotune-gaussian-process-noise", "1")
    found = parse("-np", "2", "--no-autotune", *of_horovod, "true")
    assert found.variables == {"HORON_AUTOTUNE": "0"} and len(found.remarks) == 2
    assert all("there is no Gaussian process; --autotune-max" in one for one in found.remarks)


def test_what_does_nothing_is_said_in_one_line() -> None:
    done = horonrun("-np", "1", "--disable-cache", "--no-torus-allreduce", "--mpi-args=-x A",
                    "true")
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert len(lines) == 2 and lines[0].startswith("horonrun: --disable-cache has no effect: ")
    assert "this job needs no mpirun" in lines[1]


@pytest.mark.parametrize(
    "argv, words",
    [
        (["--min-np", "2", "-np", "2", "true"], "--min-np is for elastic jobs"),
        (["--blacklist-cooldown-range", "1", "2", "true"], "--blacklist-cooldown-range is for"),
        (["--host-discovery-script", "s", "true"], "-H or --hostfile names the hosts"),
        (["--jsrun", "true"], "run the program with jsrun itself"),
        (["--mpi", "--gloo", "-np", "2", "true"], "--gloo: not allowed with argument --mpi"),
        (["-p", "0", "-np", "2", "true"], "'0' is not a port"),
        (["-p", "7", "--rsh-agent", "rsh", "-np", "2", "true"], "--rsh-agent is not ssh"),
        (["--mpi-args='", "-np", "2", "true"], "--mpi-args ''': No closing quotation"),
        (["--gloo", "-H", "192.0.2.1:1,192.0.2.2:1", "true"],
         "negotiate over MPI: leave out --gloo"),
        (["-np", "2", "--advise", "1e6"], "'1e6' is not BYTES,SECONDS"),
        (["-np", "2", "--advise", "1e6,0.1", "true"], "leave the command out"),
    ],
)
def test_refused(argv: list[str], words: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse(*argv)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_ssh_and_mpirun_get_their_words() -> None:
    found = parse("-p", "2222", "-i", "my key", "-np", "2", "--mpi",
                  "--mpi-args=--mca a b", "--binding-args=--bind-to core", "true")
    assert found.rsh_agent == "ssh -p 2222 -i 'my key'"
    from launcher.mpirun import command_line as mpirun_line

    line = " ".join(mpirun_line("mpirun", 5, found, {}))
    assert "--bind-to core" in line and "--bind-to none" not in line
    assert line.index("--mca a b") < line.index("keeper")


# --- output ---------------------------------------------------------------------------------------


def test_output_goes_to_files_too(tmp_path: Path) -> None:
    done = horonrun("-np", "2", "--output-filename", str(tmp_path / "d"),
                    "sh", "-c", "echo out $HORON_RANK; echo err $HORON_RANK >&2; printf end")
    assert sorted(done.stdout.splitlines()) == ["[0] end", "[0] out 0", "[1] end", "[1] out 1"]
    for rank in range(2):
        folder = tmp_path / "d" / f"rank.{rank}"
        assert (folder / "stdout").read_text() == f"out {rank}\nend"
        assert (folder / "stderr").read_text() == f"err {rank}\n"
    (tmp_path / "file").write_text("")
    done = horonrun("-np", "2", "--output-filename", str(tmp_path / "file"), "true")
    assert done.returncode == 2 and done.stderr.startswith("horonrun: --output-filename: ")


def test_time_before_lines() -> None:
    done = horonrun("-np", "1", "--prefix-output-with-timestamp", "echo", "x")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[0\] x\n", done.stdout)


# --- the config file ------------------------------------------------------------------------------

FULL = """
controller: mpi
params: {fusion_threshold_mb: 32, cycle_time_ms: 2.5, cache_capacity: 7,
         hierarchical_allreduce: false, hierarchical_allgather: false, torus_allreduce: false}
autotune: {enabled: true, log_file: a.log, warmup_samples: 1, steps_per_sample: 1,
           bayes_opt_max_samples: 1, gaussian_process_noise: 0.1, file: a.txt, max_samples: 40}
timeline: {filename: t.json, mark_cycles: true}
stall_check: {enabled: false, warning_time_seconds: 8, shutdown_time_seconds: 9}
library_options: {mpi_threads_disable: true, num_nccl_streams: 2, thread_affinity: 3,
                  gloo_timeout_seconds: 4}
logging: {level: DEBUG, with_timestamp: false}
"""


@pytest.fixture
def config(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "c.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_config_file_with_every_key(config) -> None:
    found = parse("--config-file", config(FULL), "-np", "2", "--cycle-time-ms", "4", "true")
    assert found.use_mpi and found.command == ["true"]
    assert found.variables == {
        "HORON_CONTROLLER": "mpi",
        "HORON_FUSION_THRESHOLD": str(32 << 20),
        "HORON_CYCLE_TIME": "4",  # the command line wins
        "HORON_CACHE_CAPACITY": "7",
        "HORON_HIERARCHICAL": "0",
        "HORON_STALL_CHECK_DISABLE": "1",
        "HORON_STALL_CHECK_TIME_SECONDS": "8",
        "HORON_STALL_SHUTDOWN_TIME_SECONDS": "9",
        "HORON_LOG": "debug",
        "HORON_LOG_HIDE_TIME": "1",
        "HORON_TIMELINE": "t.json",
        "HORON_TIMELINE_MARK_CYCLES": "1",
        "HORON_AUTOTUNE": "1",
        "HORON_AUTOTUNE_LOG": "a.log",
        "HORON_AUTOTUNE_WARMUP_SAMPLES": "1",
        "HORON_AUTOTUNE_STEPS_PER_SAMPLE": "1",
        "HORON_AUTOTUNE_FILE": "a.txt",
        "HORON_AUTOTUNE_MAX_SAMPLES": "40",
    }
    said = {remark.split()[0].split("=")[0] for remark in found.remarks}
    assert {"--autotune-bayes-opt-max-samples", "--thread-affinity"} <= said
    assert len(found.remarks) == 6


def test_command_line_wins_over_the_controller(config) -> None:
    path = config("controller: mpi")
    assert parse("--config-file", path, "-np", "2", "true").use_mpi
    assert not parse("--config-file", path, "--gloo", "-np", "2", "true").use_mpi


@pytest.mark.parametrize("option, controller", [("--mpi", "mpi"), ("--gloo", "shm")])
def test_command_line_tells_the_ranks_the_controller(option: str, controller: str) -> None:
    assert parse("-np", "2", option, "true").variables == {"HORON_CONTROLLER": controller}


@pytest.mark.parametrize(
    "text, words",
    [
        ("params: {fusion_treshold_mb: 1}", "unknown key params.fusion_treshold_mb; the nearest "
         "known one is params.fusion_threshold_mb"),
        ("logging: {hide_timestamp: true}", "the nearest known one is logging.with_timestamp"),
        ("cycle_time_ms: 1", "unknown key cycle_time_ms; the nearest known one is "
         "params.cycle_time_ms"),
        ("params: {fusion_treshold_mb: }", "unknown key params.fusion_treshold_mb;"),
        ("parms:", "unknown key parms;"),
        ("params: false", "params must hold keys and values"),
        ("parms: {cycle_time_ms: 1}", "unknown key parms;"),
        ("3: 4", "unknown key 3;"),
        ("params: {cycle_time_ms: fast}", "params.cycle_time_ms is 'fast', which is not a number"),
        ("params: {cycle_time_ms: true}", "params.cycle_time_ms is True, which is not a number"),
        ("params: {cycle_time_ms: -1}", "params.cycle_time_ms: "),
        ("stall_check: {enabled: 1}", "stall_check.enabled is 1, which is not true or false"),
        ("logging: {level: loud}", "logging.level: "),
        ("logging: {level: 3}", "logging.level is 3, which is not a text"),
        ("controller: jsrun", "controller is 'jsrun'; it can be mpi, or shm"),
        ("params: 3", "params must hold keys and values"),
        ("[1, 2]", "the file must hold keys and values"),
        ("a: [", "is not YAML"),
        ("autotune: {log_file: [a]}", "autotune.log_file is ['a'], which is not a text"),
    ],
)
def test_wrong_config_file(config, text: str, words: str) -> None:
    path = config(text)
    with pytest.raises(Refusal) as caught:
        config_file.read(path, arguments.parser())
    assert words in str(caught.value) and path in str(caught.value)
    assert "\n" not in str(caught.value)


def test_empty_and_missing_config_files(config, tmp_path: Path) -> None:
    for text in ("", "params:\n", "autotune: {log_file: }"):
        assert parse("--config-file", config(text), "-np", "1", "true").variables == {}
    done = horonrun("--config-file", str(tmp_path / "none"), "-np", "1", "true")
    assert done.returncode == 2 and "cannot read the config file" in done.stderr


# --- completion -----------------------------------------------------------------------------------


def completed(*words: str) -> list[str]:
    """What bash offers for the last of the words."""
    script = subprocess.run(command_line("--print-completion", "bash"), env=environment(),
                            capture_output=True, text=True, check=True).stdout
    line = " ".join(f"'{word}'" for word in words)
    ask = (f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; COMP_LINE='{' '.join(words)}'\n"
           "COMP_POINT=${#COMP_LINE}; _shtab_horonrun; printf '%s\\n' \"${COMPREPLY[@]}\"\n")
    done = subprocess.run(["bash", "-c", script + ask], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_options_and_values() -> None:
    assert "--fusion-threshold-mb" in completed("horonrun", "--fu")
    assert {"--hosts", "--hostfile", "--host-timeout"} <= set(completed("horonrun", "--host"))
    assert "TRACE" in completed("horonrun", "--log-level", "T")
    for option in ("--autotune-file", "--plot-autotune"):
        assert "/etc" in completed("horonrun", option, "/et")


def test_zsh_gets_its_own_form() -> None:
    done = horonrun("--print-completion", "zsh")
    assert done.returncode == 0 and done.stdout.startswith("#compdef horonrun")
    if shutil.which("zsh"):
        checked = subprocess.run(["zsh", "-n"], input=done.stdout, text=True, env=dict(os.environ))
        assert checked.returncode == 0
    done = horonrun("--print-completion", "fish")
    assert done.returncode == 2 and "invalid choice: 'fish'" in done.stderr
