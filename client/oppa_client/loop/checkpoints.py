"""Decide when a checkpoint is due, read the file in which it states how far the run was, and refuse a checkpoint of another run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oppa_client import run_files
from oppa_client.attempt import Resume
from oppa_client.loop.position import Position
from oppa_client.run import Run
from oppa_client.run_files import ContractError

POSITION = "oppa_position.json"
"""File of a checkpoint that states how far the run was."""


def due(run: Run | None, at: Position, save_every: int | None) -> bool:
    """Return True if a checkpoint is due after the last step; none is in a trial, and the end of a run saves its own.

    Args:
        run: The run; None outside oppa.
        at: Position after the step.
        save_every: Samples from one checkpoint to the next; None saves none on the way.
    """
    if not save_every or at.is_done or (run and (run.in_trial or run.leaving)):
        return False
    return at.crossed(save_every)


def resumed_at(run: Run | None, at: Position) -> Path | None:
    """Return the checkpoint that the run has resumed, until a step follows it: to save again would overwrite it, maybe the only one.

    Args:
        run: The run; None outside oppa.
        at: Position now.
    """
    resume = run.resume if run and at.samples == at.start else None
    return Path(resume.checkpoint) if resume else None


def stated_in(checkpoint: Path) -> dict[str, Any]:
    """Return what a checkpoint states; raises ContractError if it was not saved under oppa, or is not complete."""
    if not (checkpoint / POSITION).is_file():
        raise ContractError(f"the checkpoint `{checkpoint}` has no `{POSITION}`: it was not saved under oppa, or is not complete")
    stated: dict[str, Any] = run_files.read(checkpoint, POSITION)
    return stated


def require_same(stated: dict[str, Any], **wanted: Any) -> None:
    """Raise ContractError if a checkpoint states another value than the run has, such as another seed or size of the data."""
    for name, value in wanted.items():
        if stated[name] != value:
            raise ContractError(f"the checkpoint has `{name} = {stated[name]}`, but the run has `{name} = {value}`")


def require_step(step: int, resume: Resume | None) -> None:
    """Raise ContractError if the framework has not loaded the number of steps for which oppa names the checkpoint."""
    named = resume.step if resume else 0
    if step != named:
        raise ContractError(f"the checkpoint was saved after {step} steps, but oppa names it for step {named}")


def seed_of(seed: int, samples: int, rank: int) -> int:
    """Return the seed of a rank's random numbers from a checkpoint on, where those of the rank that saved it cannot go on."""
    return hash((seed, samples, rank)) % 2**32  # the hash of integers is the same in each process
