"""The torch.distributed backend "horon".

    import torch.distributed as dist
    import horon.torch.distributed             # makes the backend known

    dist.init_process_group("horon")           # under horonrun, mpirun or srun

DDP, ZeroRedundancyOptimizer, fully_shard, DeviceMesh and functional collectives then run over Horon
unchanged. No address is needed: the ranks know each other. Where MASTER_ADDR is set, torch's own
env:// is used; init_method="horon://" asks for the Horon job in any case. With another init_method
rank and world size must be those of the Horon job, which torchrun cannot start.
"""

import torch.distributed as dist

from horon.torch.distributed.group import make_group
from horon.torch.distributed.rendezvous import register as register_rendezvous


def _register():
    if "HORON" in getattr(dist.Backend, "_plugins", {}):
        return
    dist.Backend.register_backend("horon", make_group, extended_api=True, devices=["cpu"])
    register_rendezvous()


_register()
