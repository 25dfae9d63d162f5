"""Options that are more than a switch of horonrun itself: those that stand for a variable of the
runtime, and those of horovodrun that have no meaning here.

Each has its key in a config file (config_file.py). arguments.py makes a command line of the tables.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """An option whose value becomes a variable's."""

    option: str
    variable: str
    meaning: str
    key: str = ""  # in a config file
    factor: int | None = 1  # to the variable's unit; None: the value is a file's name


@dataclass(frozen=True)
class Switch:
    """A pair of options, and what the variable is for each."""

    yes: tuple[str, ...]
    no: tuple[str, ...]
    variable: str
    values: tuple[str, str]  # for yes and for no
    meaning: str
    key: str = ""


@dataclass(frozen=True)
class Idle:
    """An option of horovodrun that is accepted and does nothing; `why` is said when it is given."""

    option: str
    why: str
    key: str = ""
    takes: type | None = float  # what its value is; None: it has none, and a form with --no-


SETTINGS = (
    Setting(
        "--fusion-threshold-mb", "HORON_FUSION_THRESHOLD", "MiB fused into one bucket; 0: none",
        "params.fusion_threshold_mb", 1 << 20,
    ),
    Setting(
        "--cycle-time-ms", "HORON_CYCLE_TIME", "ms to wait for more tensors before negotiating",
        "params.cycle_time_ms",
    ),
    Setting(
        "--cache-capacity", "HORON_CACHE_CAPACITY", "tensors whose agreement is remembered",
        "params.cache_capacity",
    ),
    Setting("--start-timeout", "HORON_START_TIMEOUT", "s that ranks wait for each other at start"),
    Setting(
        "--timeline-filename", "HORON_TIMELINE", "file for a timeline of all ranks",
        "timeline.filename", None,
    ),
    Setting(
        "--autotune-log-file", "HORON_AUTOTUNE_LOG", "CSV file for the samples of --autotune",
        "autotune.log_file", None,
    ),
    Setting(
        "--autotune-file", "HORON_AUTOTUNE_FILE",
        "file of a tuned setting: taken over if it is there, else written by --autotune",
        "autotune.file", None,
    ),
    Setting(
        "--autotune-warmup-samples", "HORON_AUTOTUNE_WARMUP_SAMPLES",
        "samples that pass before --autotune measures any", "autotune.warmup_samples",
    ),
    Setting(
        "--autotune-steps-per-sample", "HORON_AUTOTUNE_STEPS_PER_SAMPLE",
        "steps whose median is a sample's time", "autotune.steps_per_sample",
    ),
    Setting(
        "--autotune-max-samples", "HORON_AUTOTUNE_MAX_SAMPLES",
        "samples that --autotune takes at most", "autotune.max_samples",
    ),
    Setting(
        "--stall-check-warning-time-seconds", "HORON_STALL_CHECK_TIME_SECONDS",
        "s after which a tensor that waits for a rank is reported",
        "stall_check.warning_time_seconds",
    ),
    Setting(
        "--stall-check-shutdown-time-seconds", "HORON_STALL_SHUTDOWN_TIME_SECONDS",
        "s after which a tensor that waits for a busy rank fails; 0: never",
        "stall_check.shutdown_time_seconds",
    ),
)  # fmt: skip

SWITCHES = (
    Switch(
        ("--autotune",), ("--no-autotune",), "HORON_AUTOTUNE", ("1", "0"),
        "whether the fastest setting is looked for while the job runs (docs/autotune.md)",
        "autotune.enabled",
    ),
    Switch(
        ("--hierarchical-allreduce",), ("--no-hierarchical-allreduce",),
        "HORON_HIERARCHICAL", ("1", "0"),
        "whether sums are made inside each node, then between nodes",
        "params.hierarchical_allreduce",
    ),
    Switch(
        ("--stall-check",), ("--no-stall-check",), "HORON_STALL_CHECK_DISABLE", ("0", "1"),
        "whether a tensor that waits too long for a busy rank is reported, and fails",
        "stall_check.enabled",
    ),
    Switch(
        ("--timeline-mark-cycles",), ("--no-timeline-mark-cycles",),
        "HORON_TIMELINE_MARK_CYCLES", ("1", "0"),
        "whether the timeline shows when cycles of the runtime begin", "timeline.mark_cycles",
    ),
    Switch(
        ("--log-with-timestamp", "--no-log-hide-timestamp"),
        ("--log-without-timestamp", "--log-hide-timestamp"),
        "HORON_LOG_HIDE_TIME", ("0", "1"), "whether the runtime's log lines begin with the time",
        "logging.with_timestamp",
    ),
)  # fmt: skip

_IN_PAIRS = (
    "settings are compared in pairs, there is no Gaussian process; --autotune-max-samples bounds "
    "how many samples are taken"
)
_BY_PLACE = "the way of a collective follows from where its ranks are"

IDLE = (
    Idle("--disable-cache", "horonrun remembers nothing from job to job", takes=None),
    Idle("--hierarchical-allgather", _BY_PLACE, "params.hierarchical_allgather", None),
    Idle("--torus-allreduce", _BY_PLACE, "params.torus_allreduce", None),
    Idle("--autotune-bayes-opt-max-samples", _IN_PAIRS, "autotune.bayes_opt_max_samples"),
    Idle("--autotune-gaussian-process-noise", _IN_PAIRS, "autotune.gaussian_process_noise"),
    Idle(
        "--mpi-threads-disable", "Horon makes do with what MPI offers; HORON_LEND=0 leaves MPI to "
        "one thread", "library_options.mpi_threads_disable", None,
    ),
    Idle(
        "--num-nccl-streams", "each GPU has one stream for communication",
        "library_options.num_nccl_streams",
    ),
    Idle(
        "--thread-affinity", "a collective runs on the thread that waits for it; --binding-args "
        "places whole ranks under mpirun", "library_options.thread_affinity", str,
    ),
    Idle(
        "--gloo-timeout-seconds", "there is no gloo; --start-timeout bounds the start, "
        "--stall-check-shutdown-time-seconds a collective", "library_options.gloo_timeout_seconds",
    ),
)  # fmt: skip

_ELASTIC = "is for elastic jobs, which this version does not run: -np N sets the number of ranks"
# Option, how many words it takes, what to do instead.
REFUSED = (
    (("--min-np", "--min-num-proc"), 1, _ELASTIC),
    (("--max-np", "--max-num-proc"), 1, _ELASTIC),
    (("--slots-per-host",), 1, _ELASTIC),
    (("--elastic-timeout",), 1, _ELASTIC),
    (("--reset-limit",), 1, _ELASTIC),
    (("--blacklist-cooldown-range",), 2, _ELASTIC),
    (("--host-discovery-script",), 1, f"{_ELASTIC}; -H or --hostfile names the hosts"),
    (("--jsrun",), 0, "is not known here: run the program with jsrun itself, without horonrun"),
)
