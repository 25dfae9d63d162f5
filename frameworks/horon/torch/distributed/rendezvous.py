"""How torch.distributed learns of the Horon job: init_method="horon://", or none at all.

Without one torch takes env://, which wants MASTER_ADDR. Where that is not set it could only fail:
then Horon's ranks, which know each other, are taken.
"""

import importlib
import os
from urllib.parse import parse_qsl, urlsplit

import torch.distributed as dist

from horon.errors import HoronUnsupported
from horon.runtime import init, rank, size


class OwnStore(dist.Store):
    """Keys of this rank alone. Horon's groups need no others; a backend that does is told so, and
    does not wait for them."""

    def __init__(self):
        super().__init__()
        self._kept = dist.HashStore()

    def set(self, key, value):
        self._kept.set(key, value)

    def get(self, key):
        self.wait([key])
        return self._kept.get(key)

    def add(self, key, amount):
        return self._kept.add(key, amount)

    def check(self, keys):
        return self._kept.check(keys)

    def wait(self, keys, timeout=None):
        missing = [key for key in keys if not self._kept.check([key])]
        if missing:
            raise HoronUnsupported(
                f"torch.distributed waits for '{missing[0]}' from another rank, which only works "
                "with a store that the ranks share: set MASTER_ADDR and MASTER_PORT, or give an "
                "init_method with an address (the backend horon needs none)"
            )

    def set_timeout(self, timeout):
        pass


_stores = []  # torch keeps only the C++ half of a store, which calls the other one


def of_job(url, **_):
    init()
    _stores.append(OwnStore())
    yield _stores[-1], rank(), size()


def without_address(by_address):
    """torch's handler of env://, but for jobs that have no address."""

    def rendezvous(url, **options):
        if os.environ.get("MASTER_ADDR"):
            return by_address(url, **options)
        init()
        job = {"rank": str(rank()), "world_size": str(size())}
        asked = dict(parse_qsl(urlsplit(url).query))
        if any(asked.get(name, is_so) != is_so for name, is_so in job.items()):
            return by_address(url, **options)
        return of_job(url)

    return rendezvous


def register() -> None:
    dist.register_rendezvous_handler("horon", of_job)
    # torch has no way to replace a handler; a version without this table keeps its own.
    handlers = getattr(importlib.import_module("torch.distributed.rendezvous"),
                       "_rendezvous_handlers", {})
    if "env" in handlers:
        handlers["env"] = without_address(handlers["env"])
