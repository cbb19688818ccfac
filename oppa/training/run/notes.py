"""Define what a run notes in a checkpoint besides weights and moments, and read it from checkpoints that may be damaged."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist

from oppa.errors import CheckpointError
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.training.checkpoint.manifest import MANIFEST, Manifest, damaged
from oppa.training.checkpoint.saving import together
from oppa.training.parallel.mesh import Mesh
from oppa.training.run.learning_rate import Followed
from oppa.training.statistics.noise_scale import NoiseScale


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunNotes:
    """Records the progress of a run at a checkpoint."""

    step: int
    samples: int
    elapsed_s: float
    configuration: Configuration
    local_batches: tuple[int, ...] = ()
    reference_batch: int
    followed: Followed
    noise_scale: NoiseScale
    data: Mapping[str, Any]
    """Values that identify the data that the sample numbers refer to."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as a manifest holds them."""
        return {**dataclasses.asdict(self), "configuration": self.configuration.to_dict()}

    @classmethod
    def of(cls, manifest: Manifest, folder: Path) -> Self:
        """Return the notes of the checkpoint in `folder`; raises CheckpointError if the manifest has others."""
        try:
            notes = cls._parsed(manifest.notes)
            notes._require_numbers()
            return notes
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(folder / MANIFEST, f"its notes are invalid: {error}") from error

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the notes of the checkpoint in `folder`; raises CheckpointError if it is damaged."""
        return cls.of(Manifest.read(folder), folder)

    @classmethod
    def _parsed(cls, notes: Mapping[str, Any]) -> Self:
        parts = {
            "configuration": Configuration.checked(notes["configuration"]),
            "local_batches": tuple(notes.get("local_batches", ())),
            "followed": Followed(**notes["followed"]),
            "noise_scale": NoiseScale.from_dict(notes["noise_scale"]),
        }
        return cls(**{**notes, **parts})

    def _require_numbers(self) -> None:
        """Raise TypeError or ValueError if a number is of another type, or is negative."""
        for record in (self, self.followed, self.noise_scale, self.noise_scale.smoothing):
            for field in dataclasses.fields(record):
                value = getattr(record, field.name)
                if field.type in (int, float) and not isinstance(value, int if field.type is int else int | float):
                    raise TypeError(f"`{field.name} = {value!r:.100}`")
        if min(self.step, self.samples, self.elapsed_s, self.reference_batch - 1, *self.local_batches, 0) < 0:
            raise ValueError("a count is negative")


def read_together(folder: Path, model: Model, data: Mapping[str, Any], mesh: Mesh) -> tuple[RunNotes, Manifest]:
    """Return the notes of a checkpoint, and its manifest, on all ranks, which must find the same.

    Args:
        folder: The checkpoint.
        model: Model of the run.
        data: Values that identify the run's data.
        mesh: Mesh of all ranks; each of them calls this.

    Raises:
        CheckpointError: on all ranks, if one cannot read the checkpoint, it is of another model or of other data, or ranks find different
            ones, as in folders that they do not share.
    """
    with together(mesh, folder, "read"):
        manifest = Manifest.read(folder)
        manifest.require_model(model)
        notes = RunNotes.of(manifest, folder)
        if notes.data != data:
            raise CheckpointError(f"`{folder}` was trained on other data: {notes.data}, not {data}", hint="keep the job's seed and corpus")
    mine = torch.tensor([notes.step, notes.samples], device=mesh.device)
    everyones = mine.new_empty(mesh.world * len(mine))
    dist.all_gather_single(everyones, mine)
    first, *others = everyones.view(mesh.world, -1).tolist()
    for rank, found in enumerate(others, start=1):
        if found != first:
            message = f"rank {rank} finds step {found[0]} and {found[1]} samples in `{folder}`, but rank 0 finds {first[0]} and {first[1]}"
            raise CheckpointError(message, hint="keep the run in a folder that all ranks share")
    return notes, manifest
