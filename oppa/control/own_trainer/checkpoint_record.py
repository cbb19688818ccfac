"""Record the checkpoints of a user's own trainer in the run's folder: `checkpoints/step-N/own.json` names one, and what it belongs to.

oppa never removes a trainer's checkpoints. It keeps the newest records, and leaves out those whose checkpoint is gone.
"""

import functools
import shutil
from collections.abc import Collection
from pathlib import Path

from pydantic import ConfigDict, ValidationError

from oppa.atomic_write import sync, write_atomically
from oppa.control.own_trainer.contract import SavedState, Seconds
from oppa.errors import CheckpointError
from oppa.problem.configuration import Configuration
from oppa.protocol.messages import AnySetting
from oppa.regular_file import read
from oppa.training.run.run_folder import CHECKPOINTS, checkpoint_of, checkpoints, steps_of
from oppa.trials.untrusted_file import insist

FILE = "own.json"


class CheckpointRecord(SavedState):
    """States a checkpoint of the trainer, and the configuration that saved it."""

    model_config = ConfigDict(extra="forbid")

    configuration: AnySetting
    elapsed_s: Seconds
    """Seconds of training up to the checkpoint."""

    @classmethod
    def of(cls, state: SavedState, configuration: Configuration, elapsed_s: float) -> "CheckpointRecord":
        """Return the record of a state that the trainer saved."""
        values = {name: getattr(state, name) for name in SavedState.model_fields}
        return cls(**values, configuration=configuration, elapsed_s=elapsed_s)

    def write(self, run: Path, *, keep: int) -> None:
        """Write the record into a run's folder, in place of an earlier one of this step, and remove the oldest ones.

        Raises:
            OSError: the folder cannot be written.
        """
        folder = checkpoint_of(run, self.step)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FILE, self.model_dump_json(indent=1).encode())
        sync(folder.parent)
        for old in checkpoints(run)[keep:]:
            shutil.rmtree(old, ignore_errors=True)


def is_recorded(run: Path, step: int) -> bool:
    """Return True if a run's folder has the record of a checkpoint; it may be damaged."""
    return (checkpoint_of(run, step) / FILE).exists()


def newest_record(run: Path, *, passed: Collection[int] = ()) -> CheckpointRecord | None:
    """Return the newest record whose checkpoint is present; None if the run has no record.

    Args:
        run: Folder of the run.
        passed: Steps of records that are left out.

    Raises:
        CheckpointError: a record is damaged, or no checkpoint is present; whether to start again is the user's decision.
    """
    gone = ""
    for folder in (each for each in checkpoints(run) if steps_of(each) not in passed):
        try:
            record = CheckpointRecord.model_validate_json(insist(functools.partial(read, folder / FILE, limit_bytes=1 << 20)))
        except FileNotFoundError:  # oppa was killed before it wrote the record
            continue
        except (OSError, ValidationError) as error:
            raise CheckpointError(f"`{folder / FILE}` is damaged: {error!r:.200}", hint="remove this folder, to resume earlier") from None
        if record.is_present:
            return record
        gone = gone or record.checkpoint
    if gone:
        hint = f"restore it, or start a new run with another --run; to train this one again, remove `{run / CHECKPOINTS}`"
        raise CheckpointError(f"the checkpoint `{gone}` of the run is gone", hint=hint)
    return None
