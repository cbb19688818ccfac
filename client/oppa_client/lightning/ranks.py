"""State the ranks that torchrun has started as arguments of Lightning's `Trainer`."""

from __future__ import annotations

import os
from typing import Any

from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment


def with_ranks(options: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of `Trainer` with `devices` and `num_nodes` as torchrun started the ranks.

    Lightning requires that their product is the number of ranks, which changes with the hosts of an elastic job. Arguments that agree stay,
    and so do indices of devices. Outside torchrun all stay.
    """
    if not TorchElasticEnvironment.detect():
        return options
    ranks, on_host = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    devices, hosts = options.get("devices", "auto"), options.get("num_nodes", 1)
    if isinstance(devices, int) and devices * hosts == ranks:
        return options
    are_indices = isinstance(devices, list) or "," in str(devices)
    return {**options, "devices": devices if are_indices else on_host, "num_nodes": ranks // on_host}
