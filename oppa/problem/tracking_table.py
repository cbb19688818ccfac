"""Validate `[tracking]` of a job file: the trackers that record studies and runs."""

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from oppa.errors import JobError
from oppa.problem.declaration import DeclaredTable, Name, Option
from oppa.problem.training import TrackingChoice
from oppa.redaction import is_secret, redacted


class TrackingTable(DeclaredTable):
    """Validates `[tracking]` and `[tracking.options.NAME]`; the trackers themselves check which options they take."""

    name: Name | Annotated[list[Name], Field(min_length=1)]
    """`mlflow`, `wandb`, `tensorboard`, one of an installed package, or `module:Class`."""
    experiment: Name | None = None
    """Experiment of MLflow, or project of W&B."""
    folder: Name = "tracking"
    """Folder of the trackers' files."""
    options: dict[str, dict[str, Option]] = Field(default_factory=dict)
    """Options of each tracker, in `[tracking.options.NAME]`. A secret is an error."""

    def record(self, folder: Path = Path()) -> TrackingChoice:
        """Return the choice of trackers; their folder is relative to `folder`, the job file's.

        Raises:
            JobError: options are for a tracker that is not named, or one of them is a secret.
        """
        names = (self.name,) if isinstance(self.name, str) else tuple(dict.fromkeys(self.name))
        for tracker, options in self.options.items():
            if tracker not in names:
                hint = f"name it: `name = [{', '.join(f'{name!r}' for name in (*names, tracker))}]`".replace("'", '"')
                raise JobError(f"[tracking.options] is for `{tracker}`, which `name` does not list", hint=hint)
            for key, value in options.items():
                if isinstance(value, str) and (is_secret(key, value) or redacted([value]) != [value]):
                    hint = "remove it, and set the environment variable that the tracker reads, such as WANDB_API_KEY"
                    raise JobError(f"`{key}` in [tracking.options.{tracker}] is a secret, and studies store the job", hint=hint)
        return TrackingChoice(
            names=names, experiment=self.experiment or "", folder=os.path.realpath(folder / self.folder), options=self.options
        )
