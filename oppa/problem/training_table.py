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
from oppa.problem.training import USUAL_SCALING, FrozenFormat, Optimizer, Over, RunOptions, Scaling, Trained, Training, field_of


class TrainingTable(DeclaredTable):
    """Validates `[training]`."""

    precision: Literal["fp32", "bf16"] | None = None
    """Precision of computation and of gradients in communication."""
    optimizer: Optimizer | None = None
    """The optimizer."""
    learning_rate: Positive | None = None
    """Learning rate at `reference_batch`, after the warm-up."""
    momentum: float | None = Field(default=None, ge=0, lt=1)
    """Momentum of SGD, below 1. An error with AdamW."""
    adam_beta2: float | None = Field(default=None, ge=0, lt=1)
    """Share of the second moment that AdamW keeps from step to step, below 1. An error with SGD."""
    weight_decay: float | None = Field(default=None, ge=0, le=1)
    """Weight decay of matrices and embeddings, from 0 to 1."""
    decay_all: bool | None = None
    """Norms, biases and other weights with one dimension decay as well."""
    gradient_clipping: float | None = Field(default=None, ge=0)
    """Largest norm of a step's gradient. 0: no clipping."""
    reduce_in_rank_order: bool | None = None
    """Gradients of replicas are added in the order of ranks, so that pipelines of any length compute the same bits."""
    collective_timeout: Seconds | None = None
    """Time that a rank waits for others at the rendezvous and in a collective."""
    seed: int | None = Field(default=None, ge=0, le=LARGEST_SEED)
    """Seed of random weights and of the order of the data."""
    corpus: OptionalName | None = None
    """Folder of files that are read as bytes. Without data, the text is from Python's standard library."""
    tokens: OptionalName | None = None
    """Token files: a file, a folder or a pattern. It excludes `corpus`."""
    token_dtype: Literal["uint16", "uint32"] | None = None
    """Type of tokens in files that do not state it. Requires `tokens`."""
    init_from: OptionalName | None = None
    """Folder of a Hugging Face model whose weights training starts from."""
    trained: Trained | None = None
    """Weights that your own program trains, for predictions. Adapters of LoRA leave the others frozen."""
    weights: FrozenFormat | None = None
    """Format of the layers' frozen weights, for predictions. Requires `trained = "lora"`."""

    def record(self, folder: Path) -> Training:
        """Return the training settings; `corpus`, `tokens` and `init_from` are relative to `folder`, the job file's folder.

        Raises:
            JobError: one of them is missing, or an option has no effect.
        """
        given = {field_of(Training, key): value for key, value in self.model_dump(exclude_none=True).items()}
        chosen = self.optimizer or Training().optimizer
        for name, optimizer in {"momentum": "sgd", "adam_beta2": "adamw"}.items():
            if name in given and optimizer != chosen:
                raise JobError(f'`{name}` has no effect with `optimizer = "{chosen}"`', hint=f'use `optimizer = "{optimizer}"`')
        if self.corpus and self.tokens:
            raise JobError(f'`corpus = "{self.corpus}"` and `tokens = "{self.tokens}"` are both data', hint="remove one of them")
        if self.token_dtype and not self.tokens:
            raise JobError(f'`token_dtype = "{self.token_dtype}"` has no effect without `tokens`', hint="remove it, or name token files")
        if self.weights and self.trained != "lora":
            raise JobError(f'`weights = "{self.weights}"` has no effect on weights that train', hint='use `trained = "lora"`, or remove it')
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


class TrainTable(DeclaredTable):
    """Validates `[train]`: the options of `oppa train`."""

    samples: Samples | None = None
    """Samples after which training ends. Without it, your own trainer ends by itself."""
    warmup: NaturalSamples | None = None
    """Samples over which the learning rate rises from 0, at most `samples`."""
    decay: Literal["none", "linear", "cosine", "wsd"] | None = None
    """Decay of the learning rate after the warm-up."""
    decay_samples: Samples | None = None
    """Last samples, over which `"wsd"` decays. An error with another decay."""
    final_share: float | None = Field(default=None, ge=0, le=1)
    """Share of the learning rate that is left at the end of its decay, from 0 to 1."""
    reference_batch: JobCount | None = None
    """Global batch for which `learning_rate` is meant."""
    scaling: Scaling | None = None
    """Rule by which the learning rate follows the global batch. The default is `"linear"` with SGD, and `"none"` under `norm-test`."""
    damping: JobNatural | None = None
    """Batches over which the learning rate follows a batch that has grown. 0: at once."""
    statistics: Over | None = None
    """Gradients that are compared with a step's mean gradient, to estimate its noise."""
    statistics_every: JobNatural | None = None
    """Interval of measured steps; 0: none. Without it, the cost limits those of your own trainer."""
    profile_steps: int | None = Field(default=None, ge=0, le=MOST_STEPS)
    """First steps whose passes are timed, part by part. 0: none."""
    workers_every: JobCount | None = None
    """Steps over which each data-parallel worker summarises its metrics."""
    validation: JobCount | None = None
    """Held-out samples, which training never uses."""
    validate_every: JobCount | None = None
    """Training samples between two validations."""
    checkpoint_every: Seconds | None = None
    """Time between two checkpoints."""
    keep: JobCount | None = None
    """Newest checkpoints that are kept. oppa never removes those of your own trainer."""
    leave_timeout: Seconds | None = None
    """Time in which the trainer has to save and leave when asked."""
    preemption_grace: Seconds | None = None
    """The same after SIGTERM."""
    advise: bool | None = None
    """The policy changes nothing, and its decisions are logged as advice."""
    least_batch: JobCount | None = None
    """Smallest global batch that a policy may choose, at most `largest_batch`."""
    largest_batch: JobCount | None = None
    """Largest global batch that a policy may choose."""
    changes_per_hour: Positive | None = None
    """Largest number of changes in an hour."""
    frozen: str | None = Field(default=None, max_length=1000)
    """Ranges of samples in which no change begins, such as `"0..2000,9000..10000"`."""

    def record(self, optimizer: Optimizer) -> RunOptions:
        """Return the run options; raises JobError if the warm-up is longer than the training."""
        given = {field_of(RunOptions, key): value for key, value in self.model_dump(exclude_none=True).items()}
        run_options = dataclasses.replace(RunOptions(scaling=USUAL_SCALING[optimizer], usual_scaling=self.scaling is None), **given)
        if run_options.samples is not None and run_options.warmup_samples > run_options.samples:
            message = f"`warmup = {run_options.warmup_samples}` is more than `samples = {run_options.samples}`"
            raise JobError(message, hint=f"use at most {run_options.samples}")
        if run_options.decay_samples is not None and run_options.decay != "wsd":
            message = f'`decay_samples = {run_options.decay_samples}` has no effect with `decay = "{run_options.decay}"`'
            raise JobError(message, hint='use `decay = "wsd"`')
        return run_options
