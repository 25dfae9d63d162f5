"""Several ranks of one GPU, which NCCL does not have otherwise: they take turns on it, so results
mean something and times do not."""

from __future__ import annotations

import os

# Each rank takes itself for a host of its own, over the loopback.
SHARED = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_NET_PLUGIN": "none",
          "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "2", "NCCL_ALGO": "Ring",
          "NCCL_PROTO": "Simple", "NCCL_DEBUG": "WARN", "HORON_TEST_ONE_GPU": "1"}


def be_a_host(rank: int) -> None:
    """Before NCCL begins, which reads it then."""
    if os.environ.get("HORON_TEST_ONE_GPU"):
        os.environ["NCCL_HOSTID"] = f"one-gpu-{rank}"
