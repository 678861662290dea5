"""Presets of network variables for collective communication, by name, as data.

A profile names one with `network = "aws-efa"`; its own `env` table wins over the preset. The variables are those that
the documentation of NCCL, libfabric and AWS's EFA name for this kind of network.
"""

from __future__ import annotations

import msgspec


class Network(msgspec.Struct, frozen=True):
    """`env` is exported as it is; `prepend` goes before what a search path already holds."""

    meaning: str
    env: dict[str, str]
    prepend: dict[str, str] = {}


NETWORKS: dict[str, Network] = {
    "aws-efa": Network(
        "AWS Elastic Fabric Adapter through libfabric",
        {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "NCCL_IB_DISABLE": "1"},
        {"LD_LIBRARY_PATH": "/opt/amazon/efa/lib"},
    ),
    "infiniband": Network(
        "InfiniBand or RoCE verbs; a job without them fails instead of falling back to slow sockets",
        {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "0"},
    ),
    "ethernet": Network(
        "plain TCP sockets",
        {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"},
    ),
}
