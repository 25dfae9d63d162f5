"""The torch.distributed backend "horon".

    import torch.distributed as dist
    import horon.torch.distributed                              # makes the backend known

    dist.init_process_group("horon", init_method="horon://")    # under horonrun, mpirun or srun

DDP, ZeroRedundancyOptimizer, fully_shard, DeviceMesh and functional collectives then run over Horon
unchanged. `horon://` needs no address: the ranks know each other. With another init_method rank and
world size must be those of the Horon job, which torchrun cannot start.
"""

import torch.distributed as dist

from horon.runtime import init, rank, size
from horon.torch.distributed.group import make_group


def _rendezvous(url, **_):
    init()
    yield dist.HashStore(), rank(), size()


def _register():
    if "HORON" in getattr(dist.Backend, "_plugins", {}):
        return
    dist.Backend.register_backend("horon", make_group, extended_api=True, devices=["cpu"])
    dist.register_rendezvous_handler("horon", _rendezvous)


_register()
