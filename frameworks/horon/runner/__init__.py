"""horon.run: a Python function on all ranks of a new job, called from a program or a notebook."""

__all__ = ["run"]


def run(
    func,
    args=(),
    kwargs=None,
    num_proc=None,
    min_num_proc=None,
    max_num_proc=None,
    slots=None,
    reset_limit=None,
    cooldown_range=None,
    hosts=None,
    hostfile=None,
    host_discovery_script=None,
    start_timeout=None,
    ssh_port=None,
    ssh_identity_file=None,
    disable_cache=None,
    output_filename=None,
    verbose=None,
    use_gloo=None,
    use_mpi=None,
    mpi_args=None,
    network_interface=None,
    network_interfaces=None,
    executable=None,
    np=None,
    min_np=None,
    max_np=None,
) -> list:
    """Calls func(*args, **kwargs) on every rank of a job, and returns what each returned, by rank.

    Blocks until the job has ended; any thread may call it. The ranks' output appears on
    sys.stdout and sys.stderr. func, its arguments and results go through cloudpickle: what they
    name in modules must be importable on all hosts. func calls init() itself.

    np or num_proc: number of ranks (default 1, or all slots of the hosts). hosts: "h1:2,h2:2", or
    hostfile. executable: the Python of the ranks. The rest are options of horonrun of the same
    names; those of elastic jobs are refused.

    Raises HoronInvalidArgument for a call that is wrong, HoronRunError when the job fails: its
    cause is the exception of the rank that failed first.
    """
    given = locals()
    import sys

    from horon.runner import call, job

    task = call.task(func, args, {} if kwargs is None else kwargs)
    return job.run(executable or sys.executable, call.options(given), task)
