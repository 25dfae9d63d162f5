"""What a call of horon.run means to horonrun, and the function as bytes."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle

from horon.errors import HoronInvalidArgument, HoronUnsupported

_ELASTIC = (
    "min_num_proc max_num_proc min_np max_np slots reset_limit cooldown_range "
    "host_discovery_script"
).split()
_VALUES = (
    "hosts hostfile start_timeout ssh_port ssh_identity_file output_filename network_interface"
).split()
_FLAGS = {"disable_cache": "--disable-cache", "verbose": "--verbose", "use_gloo": "--gloo",
          "use_mpi": "--mpi"}  # fmt: skip


def options(given: dict[str, Any]) -> list[str]:
    """horonrun's options for the arguments of a call."""
    for name in _ELASTIC:
        if given[name] is not None:
            raise HoronUnsupported(
                f"horon.run: {name} is for elastic jobs, which this version does not run: np is "
                "the number of ranks"
            )
    for one, other in (("hosts", "hostfile"), ("use_gloo", "use_mpi"), ("np", "num_proc")):
        if given[one] and given[other]:
            raise HoronInvalidArgument(f"horon.run: give {one} or {other}, not both")
    words = _ranks(given)
    for name in _VALUES:
        if given[name] is not None:
            words.append(f"--{name.replace('_', '-')}={given[name]}")
    words += [option for name, option in _FLAGS.items() if given[name]]
    if given["mpi_args"]:
        words.append(f"--mpi-args={given['mpi_args']}")
    interfaces = given["network_interfaces"]
    if interfaces:
        names = interfaces if isinstance(interfaces, str) else ",".join(interfaces)
        words.append(f"--network-interfaces={names}")
    return words


def _ranks(given: dict[str, Any]) -> list[str]:
    count = given["num_proc"] if given["np"] is None else given["np"]
    if count is None:
        return [] if given["hosts"] or given["hostfile"] else ["-np", "1"]
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise HoronInvalidArgument(f"horon.run: np is {count!r}: a job has at least 1 rank")
    return ["-np", str(count)]


def task(func: Any, args: Any, kwargs: Any) -> bytes:
    """What a rank reads (worker.py): where modules are found here, and the call."""
    if not callable(func):
        raise HoronInvalidArgument(f"horon.run: {func!r} is not a function")
    if not isinstance(args, (tuple, list)) or not isinstance(kwargs, dict):
        raise HoronInvalidArgument(
            "horon.run: args is a tuple and kwargs a dict, as in run(f, args=(1,), kwargs={'x': 2})"
        )
    name = getattr(func, "__qualname__", repr(func))
    parts = {f"the function {name}": func}
    parts |= {f"args[{number}]": value for number, value in enumerate(args)}
    parts |= {f"kwargs[{key!r}]": value for key, value in kwargs.items()}
    for what, value in parts.items():
        _pickled(what, value)
    call = cloudpickle.dumps((func, tuple(args), kwargs))  # together: what they share stays shared
    return cloudpickle.dumps((list(sys.path), call))


def _pickled(what: str, value: Any) -> bytes:
    try:
        return cloudpickle.dumps(value)
    except Exception as error:
        why = " ".join(str(error).split())
        raise HoronInvalidArgument(
            f"horon.run: {what} cannot be pickled, so the ranks cannot get it: {why}"
        ) from error
