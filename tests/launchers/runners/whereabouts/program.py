"""Every rank opens the mesh and sends its address, as the kernel has it, to each of its groups. `rank0.json`, ... have what it received:

{"address": "10.77.0.1", "tp": [[0, "10.77.0.1"], [1, "10.77.0.1"]], "ep": ..., "dp": ..., "expert_dp": ..., "pp": ...}
"""

import json
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch, whose threads would not survive a fork

import oppa_client
import torch
import torch.distributed as dist

from oppa.launchers import network
from oppa.training.parallel.mesh import open_mesh
from oppa.trials.trial_folder import TrialSpec

torch.set_num_threads(1)

AXES = ("tp", "ep", "dp", "expert_dp", "pp")
ELSEWHERE = "10.77.0.254"
"""A host that there is not: a packet to it would have to leave this one."""


def run(folder, rank, world):
    """One step, in which every group is used once."""
    trial, spec = oppa_client.Trial(folder, rank=rank, world=world), TrialSpec.read(folder)
    address = network.address_towards(ELSEWHERE)
    with open_mesh(spec.configuration, spec.cluster, rank=rank, world=world, rendezvous=os.environ["OPPA_RENDEZVOUS"]) as mesh:
        heard = {axis: gathered(getattr(mesh, axis), [rank, address]) for axis in AXES}
    (folder / f"rank{rank}.json").write_text(json.dumps({"address": address, **heard}))
    trial.step(1.0)
    return 0


def gathered(axis, words):
    """Return what each rank of the group sends."""
    said = [words] * axis.size
    if axis.group is not None:
        dist.all_gather_object(said, words, group=axis.group)
    return said
