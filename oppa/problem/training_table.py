"""Define the tables `[training]` and `[train]` of `job.toml`, and convert each to its record. Defaults are in the records."""

import dataclasses
import glob
import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from oppa.errors import JobError
from oppa.problem.bounds import LARGEST_SEED, MOST_STEPS
from oppa.problem.declaration import DeclaredTable, JobCount, JobNatural, NaturalSamples, OptionalName, Positive, Samples, Seconds
from oppa.problem.training import USUAL_SCALING, Optimizer, Over, RunOptions, Scaling, Training


class TrainingTable(DeclaredTable):
    """Validates `[training]`."""

    precision: Literal["fp32", "bf16"] | None = None
    optimizer: Optimizer | None = None
    learning_rate: Positive | None = None
    momentum: float | None = Field(default=None, ge=0, lt=1)
    adam_beta2: float | None = Field(default=None, ge=0, lt=1)
    weight_decay: float | None = Field(default=None, ge=0, le=1)
    decay_all: bool | None = None
    gradient_clipping: float | None = Field(default=None, ge=0)
    reduce_in_rank_order: bool | None = None
    collective_timeout: Seconds | None = None
    seed: int | None = Field(default=None, ge=0, le=LARGEST_SEED)
    corpus: OptionalName | None = None
    tokens: OptionalName | None = None
    token_dtype: Literal["uint16", "uint32"] | None = None
    init_from: OptionalName | None = None

    def record(self, folder: Path) -> Training:
        """Return the training settings; `corpus`, `tokens` and `init_from` are relative to `folder`, the job file's folder.

        Raises:
            JobError: one of them is missing, or an option has no effect.
        """
        given = self.model_dump(exclude_none=True)
        if "collective_timeout" in given:
            given["collective_timeout_s"] = given.pop("collective_timeout")
        chosen = self.optimizer or Training().optimizer
        for name, optimizer in {"momentum": "sgd", "adam_beta2": "adamw"}.items():
            if name in given and optimizer != chosen:
                raise JobError(f'`{name}` has no effect with `optimizer = "{chosen}"`', hint=f'use `optimizer = "{optimizer}"`')
        if self.corpus and self.tokens:
            raise JobError(f'`corpus = "{self.corpus}"` and `tokens = "{self.tokens}"` are both data', hint="remove one of them")
        if self.token_dtype and not self.tokens:
            raise JobError(f'`token_dtype = "{self.token_dtype}"` has no effect without `tokens`', hint="remove it, or name token files")
        kinds = {"corpus": "a folder of text", "tokens": "token files", "init_from": "a folder of a Hugging Face model"}
        for name in kinds.keys() & given.keys():
            given[name] = os.path.realpath(folder / given[name]) if given[name] else ""
        for name, kind in kinds.items():
            if given.get(name) and not (Path(given[name]).is_dir() or (name == "tokens" and _has_files(given[name]))):
                what = "names no file" if name == "tokens" else "is not a folder"
                raise JobError(f'`{name} = "{getattr(self, name)}"` {what}', hint=f"name {kind}, relative to the job file")
        return Training(**given)


def _has_files(pattern: str) -> bool:
    """Return whether there is a file of this name, with or without its suffix, or one that matches it as a pattern."""
    return Path(pattern).is_file() or any(glob.glob(f"{pattern}{suffix}") for suffix in ("", ".bin"))  # noqa: PTH207 - an absolute path


_IN_SECONDS = ("leave_timeout", "preemption_grace")
"""Keys of `[train]` whose field has the same name with the unit."""


class TrainTable(DeclaredTable):
    """Validates `[train]`: the options of `oppa train`."""

    samples: Samples | None = None
    warmup: NaturalSamples | None = None
    decay: Literal["none", "linear", "cosine", "wsd"] | None = None
    decay_samples: Samples | None = None
    final_share: float | None = Field(default=None, ge=0, le=1)
    reference_batch: JobCount | None = None
    scaling: Scaling | None = None
    damping: JobNatural | None = None
    statistics: Over | None = None
    statistics_every: JobNatural | None = None
    profile_steps: int | None = Field(default=None, ge=0, le=MOST_STEPS)
    workers_every: JobCount | None = None
    validation: JobCount | None = None
    validate_every: JobCount | None = None
    checkpoint_every: Seconds | None = None
    keep: JobCount | None = None
    leave_timeout: Seconds | None = None
    preemption_grace: Seconds | None = None
    advise: bool | None = None
    least_batch: JobCount | None = None
    largest_batch: JobCount | None = None
    changes_per_hour: Positive | None = None
    frozen: str | None = Field(default=None, max_length=1000)

    def record(self, optimizer: Optimizer) -> RunOptions:
        """Return the run options; raises JobError if the warm-up is longer than the training."""
        names = {"warmup": "warmup_samples", "checkpoint_every": "checkpoint_s", **{name: f"{name}_s" for name in _IN_SECONDS}}
        usual = RunOptions(scaling=USUAL_SCALING[optimizer])
        run_options = dataclasses.replace(
            usual, **{names.get(key, key): value for key, value in self.model_dump(exclude_none=True).items()}
        )
        if run_options.samples is not None and run_options.warmup_samples > run_options.samples:
            message = f"`warmup = {run_options.warmup_samples}` is more than `samples = {run_options.samples}`"
            raise JobError(message, hint=f"use at most {run_options.samples}")
        if run_options.decay_samples is not None and run_options.decay != "wsd":
            message = f'`decay_samples = {run_options.decay_samples}` has no effect with `decay = "{run_options.decay}"`'
            raise JobError(message, hint='use `decay = "wsd"`')
        return run_options
