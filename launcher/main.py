"""Entry point of horonrun: reads the options and chooses how the job is started."""

from __future__ import annotations

import os
import signal
import sys

from . import options as options_module
from .options import Options, Refusal


def main(argv: list[str] | None = None) -> int:
    """Runs horonrun and returns its exit code. Never raises for a user's mistake."""
    try:
        options = options_module.parse(sys.argv[1:] if argv is None else argv, os.environ)
        code = _run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # horonrun --check-build | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Refusal as refusal:
        print(f"horonrun: {refusal}", file=sys.stderr)
        return refusal.exit_code


def _run(options: Options) -> int:
    if options.check_build:
        from . import check_build

        return check_build.report()
    if options.use_mpi:
        from . import mpirun

        return mpirun.run(options, os.environ)
    from . import job, rank

    launches = rank.plan(options, os.environ)
    if options.dry_run:
        for launch in launches:
            print(launch.shell_line())
        return 0
    return job.Job(options, launches).run()
