"""Entry point of horonrun: reads the options and chooses how the job is started."""

from __future__ import annotations

import errno
import os
import signal
import sys
from typing import TYPE_CHECKING

from . import options as options_module
from .options import Options
from .refusal import EXHAUSTED, Refusal

if TYPE_CHECKING:
    from .job import Crew

def main(argv: list[str] | None = None) -> int:
    """Runs horonrun and returns its exit code. Never raises for a user's mistake."""
    _open_standard_streams()
    arguments = sys.argv[1:] if argv is None else argv
    try:
        if arguments[:1] == ["top"]:
            from . import top

            return top.main(arguments[1:])
        options = options_module.parse(arguments, os.environ)
        code = _run(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:  # before there is a job, which ends its ranks
        return 128 + signal.SIGINT
    except BrokenPipeError:  # horonrun --check-build | head
        _write_no_more()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in EXHAUSTED:
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _write_no_more()
        print(f"horonrun: {error.strerror}: {EXHAUSTED[error.errno]}", file=sys.stderr)
        return 2
    except Refusal as refusal:
        print(f"horonrun: {refusal}", file=sys.stderr)
        for line in refusal.details:
            print(f"    {line}", file=sys.stderr)
        return refusal.exit_code


def _open_standard_streams() -> None:
    """Of those that are closed: else sockets and pipes would get their numbers, and be written
    to."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))


def _write_no_more() -> None:
    """What Python still holds of the output is not for a file that takes none."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_postmortem(folder: str) -> int:
    from . import postmortem, recorder

    try:
        recordings = recorder.read_folder(folder)
        written, written_at = recorder.last_report(folder)
    except OSError as error:
        raise Refusal(f"cannot read {error.filename}: {error.strerror}") from None
    if recordings and recorder.end(recordings) >= written_at:
        print(recorder.report(recordings, postmortem.verdict(recordings)))
        return 0
    if not written:
        raise Refusal(
            f"neither flight recorders (rank-N.rec) nor a report of horonrun's in {folder}; "
            "HORON_POSTMORTEM_DIR names the folder of a job that fails"
        )
    print(written)
    return 0


def _run(options: Options) -> int:
    if options.check_build:
        from . import check_build

        return check_build.report()
    if options.postmortem:
        return _show_postmortem(options.postmortem)
    if options.timelines:
        from . import timelines

        timelines.merge(options.timelines[0], options.timelines[1:])
        return 0
    if options.tuning_log:
        from . import tuning_plot

        print(tuning_plot.write(options.tuning_log))
        return 0
    if options.completion:
        from . import arguments, completion

        print(completion.script(arguments.parser(), options.completion))
        return 0
    from . import library

    library.refuse_wrong_settings(_settings(options))
    for remark in options.remarks:
        print(f"horonrun: {remark}", file=sys.stderr, flush=True)
    if options.verbose:
        _say_what_is_found(options)
    if options.task_socket is not None:
        from . import errand

        options.task = errand.take(options.task_socket)
    return _run_through_mpi(options) if options.use_mpi else _run_here(options)


def _say_what_is_found(options: Options) -> None:
    from . import hosts, mpirun, surroundings

    path = mpirun.find_mpirun(os.environ)
    found = surroundings.described(os.environ, path, mpirun.version(path) if path else "")
    where = hosts.listed(options.hosts) or "this machine"
    way = "mpirun and a keeper for each" if options.use_mpi else "no MPI"
    print(
        f"horonrun: {found}; used: {options.np} ranks on {where}, started through {way}",
        file=sys.stderr,
        flush=True,
    )


def _settings(options: Options) -> dict[str, str]:
    """What the ranks find in their environment, but for what each gets of its own."""
    return {**os.environ, **options.variables}


def _explain(options: Options, ranks: Crew) -> None:
    """What the ranks have said of where their time went, if they were asked."""
    from . import explain

    given = _settings(options)
    threshold = given.get("HORON_FUSION_THRESHOLD", given.get("HOROVOD_FUSION_THRESHOLD", ""))
    figures = {rank.rank: rank.time_use for rank in ranks.ranks}
    for line in explain.report(
        figures, len(ranks.ranks), int(threshold) if threshold.isdigit() else None
    ):
        print(f"horonrun: {line}", file=sys.stderr)


def _run_here(options: Options) -> int:
    from . import rank

    launches = rank.plan(options, os.environ)
    if options.dry_run:
        for launch in launches:
            print(launch.shell_line())
        return 0
    return _run_job(options, rank.LocalCrew(launches))


def _run_through_mpi(options: Options) -> int:
    from . import crew

    ranks = crew.RemoteCrew(options, os.environ)
    if options.dry_run:
        print(ranks.dry_run())
        return 0
    # A stopped horonrun would be taken for a lost one: Ctrl-Z does nothing.
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    return _run_job(options, ranks)


def _run_job(options: Options, ranks: Crew) -> int:
    from . import errand, job, limits

    limits.reserve(options)
    started = job.Job(options, ranks)
    code = started.run()
    _explain(options, ranks)
    if options.task_socket is not None:
        errand.report(options.task_socket, ranks.ranks, started.culprit)
    return code
