"""Save and load a run's state on all ranks between two optimizer steps; a failure of one rank fails on all."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from oppa.errors import CheckpointError, reason
from oppa.training.checkpoint.manifest import Manifest
from oppa.training.checkpoint.storage import abandon, begin, load, seal, write_share
from oppa.training.parallel.mesh import Mesh
from oppa.training.replica import Replica
from oppa.training.reshard.shards import layout_of
from oppa.training.reshard.staging import prepare, stage, state_of, trained
from oppa.trials.trial_folder import TrialSpec


def save(folder: Path, replica: Replica, spec: TrialSpec, mesh: Mesh, notes: Mapping[str, Any]) -> None:
    """Save the state of all ranks and the trainer's notes (JSON) in a folder that all ranks can access; training can continue.

    Raises:
        CheckpointError: if the folder exists, or a rank cannot write.
    """
    staged = stage(replica, spec, mesh)
    try:
        with together(mesh, folder, "write"):
            if mesh.rank == 0:
                begin(folder)
        with together(mesh, folder, "write"):
            write_share(folder, staged.state, staged.layout, mesh.rank)
        with together(mesh, folder, "write"):
            if mesh.rank == 0:
                seal(folder, spec.model, steps=staged.steps, notes=notes, ranks=mesh.world)
    except CheckpointError:
        if mesh.rank == 0:  # on a full disk, drafts would take the room of the next checkpoint
            abandon(folder)
        raise


def resume(folder: Path, replica: Replica, spec: TrialSpec, mesh: Mesh, manifest: Manifest | None = None) -> Manifest:
    """Fill a new replica of any layout from a checkpoint, and return the manifest with the number of steps and the trainer's notes.

    Args:
        folder: The checkpoint.
        replica: Replica to fill.
        spec: Model and configuration.
        mesh: Process groups of this rank.
        manifest: Manifest of the checkpoint, if all ranks have read it already.

    Raises:
        CheckpointError: if the checkpoint is incomplete, altered or of another model; the replica is then unusable.
    """
    with together(mesh, folder, "read"):
        manifest = manifest or Manifest.read(folder)
        manifest.require_model(spec.model)
        prepare(replica, manifest.steps, spec.training.moments)
        shards = trained(layout_of(spec.model, spec.configuration, spec.training.moments), manifest.steps)[mesh.rank]
        load(folder, manifest, state_of(replica, shards))
    return manifest


@contextlib.contextmanager
def together(mesh: Mesh, folder: Path, what: str) -> Iterator[None]:
    """Run the block on all ranks. If one fails, all raise CheckpointError: its own error, or one that names the first failed rank.

    Args:
        folder: The checkpoint.
        what: What the ranks do with it, for the message: `read` or `write`.
    """
    failure: OSError | CheckpointError | None = None
    try:
        yield
    except (OSError, CheckpointError) as error:
        failure = error
    failures = torch.tensor(float(failure is not None), device=mesh.device)
    dist.all_reduce(failures)
    if not failures:
        return
    reasons = [""] * mesh.world
    dist.all_gather_object(reasons, reason(failure) if failure is not None else "")
    if isinstance(failure, CheckpointError):
        raise failure
    rank, why = next((rank, why) for rank, why in enumerate(reasons) if why)
    raise CheckpointError(
        f"rank {rank} cannot {what} `{folder}`: {why}", hint="check the free space of its disk, and your rights"
    ) from failure
