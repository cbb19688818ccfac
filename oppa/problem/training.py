"""Define how the model is trained, how much a study may spend, how it searches, and where its trials run."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Self

from oppa.extensions import OptionValue

Scaling = Literal["sqrt", "linear", "none"]
"""Rule by which the learning rate follows the global batch.

It follows as the square root (Adam's rule, COPUS eq. 9), in proportion (SGD's), or not at all.
"""
USUAL_SCALING: Mapping["Optimizer", Scaling] = {"adamw": "sqrt", "sgd": "linear"}

Optimizer = Literal["adamw", "sgd"]

Trained = Literal["all", "lora"]
FrozenFormat = Literal["16-bit", "8-bit", "4-bit"]

Over = Literal["micro-batches", "workers"]
"""Gradients that are compared with a step's mean gradient, to estimate its noise."""


FEWEST_STEPS = 3
"""Fewest steps after `settle` that have a throughput: a warm-up, and two that have a variance."""
COLLECTIVE_TIMEOUT_S = 300.0

LATER = ("max_gpu_hours", "price_per_gpu_hour", "currency", "run_length_s", "settle")
"""Fields of the limits that stored problems have only where they are stated: the devices' hours, their price, and steps to drop."""
SAME_RESULTS = ("reduce_in_rank_order", "collective_timeout_s")
"""Fields that change no result beyond rounding; a run may continue with other values."""
OfSomeRunners = Literal["init_from", "reduce_in_rank_order"]
"""Fields that a runner may not support."""
_LATER = ("weight_decay", "decay_all", "tokens", "token_dtype", "init_from", "trained", "weights")
"""Fields that older studies lack."""
USUAL_WEIGHT_DECAY: Mapping["Optimizer", float] = {"adamw": 0.01, "sgd": 0.0}
"""Weight decay of a job that states none: torch's own."""

SPELLED = {"warmup": "warmup_samples", "checkpoint_every": "checkpoint_s"}
"""Fields of records, by their key in a job file, if the names differ by more than a unit."""


def field_of(record: type, key: str) -> str:
    """Return the field of a record for a key of its table in a job file. The field of a duration has the unit in its name, its key not."""
    fields = {field.name for field in dataclasses.fields(record)}
    return next(name for name in (key, f"{key}_s", SPELLED.get(key, "")) if name in fields)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Holds the settings of a training run, besides model, configuration and cluster."""

    precision: str = "fp32"
    """`fp32` or `bf16`."""
    optimizer: Optimizer = "adamw"
    learning_rate: float = 3e-4
    momentum: float = 0.9
    """Momentum of SGD."""
    adam_beta2: float = 0.999
    """Share of the second moment that AdamW keeps from step to step.

    If the batch grows, the moment must follow; at 0.95 it does within 20 steps.
    """
    weight_decay: float | None = None
    """Weight decay of matrices; norms, biases and other parameters with fewer dimensions do not decay. None: the optimizer's usual one."""
    decay_all: bool = False
    """Weight decay applies to all parameters."""
    gradient_clipping: float = 0.0
    """Largest norm of a step's gradient; 0: no clipping."""
    reduce_in_rank_order: bool = False
    """Add replicas' gradients in the order of ranks, after the backward pass.

    Pipelines of any length then compute the same bits.
    """
    seed: int = 0
    collective_timeout_s: float = COLLECTIVE_TIMEOUT_S
    """Seconds that a rank waits for its peers, at the rendezvous and in a collective."""
    corpus: str = ""
    """Folder of text to train on, all of it; empty: the first 4 MiB of the sources of Python's standard library."""
    tokens: str = ""
    """Token files to train on in place of text: a path, or a pattern of files in name order (`oppa.training.data.token_files`)."""
    token_dtype: str = ""
    """Type of the tokens in files that do not state it, `uint16` or `uint32`; empty: the smaller one that holds the vocabulary."""
    init_from: str = ""
    """Folder of a Hugging Face model whose weights training starts from; empty: random weights."""
    trained: Trained = "all"
    """Weights that the user's own program trains; the others are frozen."""
    weights: FrozenFormat = "16-bit"
    """Format of the layers' frozen weights."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as they are written to JSON; `Training(**values)` is the inverse.

        Fields that change no result, or that came later, are omitted at their defaults. So fingerprints of older studies stay valid.
        """
        values, usual = dataclasses.asdict(self), Training()
        optional = (*SAME_RESULTS, *_LATER)
        return {name: value for name, value in values.items() if name not in optional or value != getattr(usual, name)}

    @property
    def decay(self) -> float:
        """Return the weight decay of matrices."""
        return USUAL_WEIGHT_DECAY[self.optimizer] if self.weight_decay is None else self.weight_decay

    @property
    def element_bytes(self) -> int:
        """Return the bytes of a gradient's element in communication."""
        return {"fp32": 4, "bf16": 2}[self.precision]

    @property
    def adam_betas(self) -> tuple[float, float]:
        """Return the betas of AdamW."""
        return 0.9, self.adam_beta2

    @property
    def moments(self) -> tuple[str, ...]:
        """Return torch's names of the tensors that the optimizer keeps for each weight."""
        if self.optimizer == "adamw":
            return "exp_avg", "exp_avg_sq"
        return ("momentum_buffer",) if self.momentum else ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Holds the limits of a study and of each of its trials."""

    trials: int | None = None
    """Search trials of the whole study, without verification repeats; None: no limit."""
    wall_time_s: float | None = None
    """Wall-clock seconds of the search, over all sessions; None: no limit.

    A trial that runs at the limit is finished.
    """
    trial_time_s: float = 120.0
    """Seconds after which a trial is ended: `timed_out`, unless it has taken `settle` and `q_min` steps by then."""
    q_min: int = 5
    """Steps of every trial before early termination is considered (OPPA eq. 5)."""
    q_max: int = 30
    """Steps of a complete trial, the first (warm-up) included (OPPA Table 2)."""
    settle: int = 0
    """First steps of each trial that are not measured, such as those of a router that is not yet balanced."""
    repeats: int = 3
    """Runs of the winner and of the default configuration at the end, interleaved."""
    grace_s: float = 5.0
    """Seconds between the request to end a process and its kill."""
    device_lock: bool = True
    """Run no trial while another tuner of this user runs one on this host's devices of the same kind (CUDA or CPU)."""
    max_gpu_hours: float | None = None
    """Hours of all devices together that the study may take, verification included; None: no limit. No trial is granted more.

    Hours, because clouds and grants state prices and quotas per hour.
    """
    price_per_gpu_hour: float | None = None
    """Price of one device for one hour, in `currency`; None: money is not reported."""
    currency: str = "USD"
    run_length_s: float | None = None
    """Seconds that the training run takes in its present configuration; None: unknown."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as they are written to JSON; later fields are omitted unless they are stated, as before they existed."""
        usual = Limits()
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in LATER or value != getattr(usual, name)}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Holds the choices of the search that the papers leave open."""

    stopping: str | None = None
    """Rule of `oppa.tuning.stopping` by which a trial may end early; None: the designer's own."""
    acquisition: str = "improvement"
    """Acquisition function: `improvement` on the incumbent, or `ucb`, the upper confidence bound of OPPA eq. 4."""
    beta: float | None = 1.0
    """Weight of uncertainty in the acquisition (OPPA eq. 4); None: the schedule of eq. 32."""
    transfer: tuple[str, ...] = ()
    """Folders of studies whose learned coefficients the search starts from, or patterns of such folders."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the options that were written to JSON; older studies name one folder or none."""
        named = values.get("transfer") or ()
        return cls(**{**values, "transfer": (named,) if isinstance(named, str) else tuple(named)})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProxyChoice:
    """Holds the smaller size at which the search runs first; None where oppa proposes it."""

    hosts: int | None = None
    layers: int | None = None
    global_batch: int | None = None
    """Sequences per optimizer step; None: as many as keep each device's work per step."""


STEP = "srun"
"""Name of the launcher of launch lines that start their own ranks by srun."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LauncherChoice:
    """Holds the launcher of the trials, and its options."""

    name: str = "auto"
    """Name of a launcher of `oppa.launchers`; `auto`: the hosts that oppa was started on."""
    options: Mapping[str, OptionValue] = dataclasses.field(default_factory=dict)
    parallel: int | None = None
    """Number of parallel trials; None for as many as there are hosts for."""

    @property
    def is_own_step(self) -> bool:
        """Return True if the launch line itself starts its ranks on all hosts, by srun."""
        return self.name == STEP


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrackingChoice:
    """Holds the trackers that record a study or a run, and where they do."""

    names: tuple[str, ...]
    """Names of trackers: built in, of an installed package, or `module:Class`."""
    experiment: str = ""
    """Name under which the trackers group runs: the experiment of MLflow, the project of W&B; empty: the job's name."""
    folder: str
    """Folder of the trackers' files, absolute."""
    options: Mapping[str, Mapping[str, OptionValue]] = dataclasses.field(default_factory=dict)
    """Options of each tracker."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the choice that was written to JSON."""
        return cls(**{**values, "names": tuple(values["names"])})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Holds the options of `oppa train`.

    They are counted in samples (sequences, or images), because the batch size may change at any step.
    """

    samples: int | None = None
    """Samples after which training ends; None: one epoch."""
    warmup_samples: int = 0
    """Samples over which the learning rate rises from 0."""
    decay: str = "none"
    """Decay of the learning rate from there to the end: `none`, `linear`, `cosine`, or `wsd`, which is stable until its last samples."""
    decay_samples: int | None = None
    """Samples at the end over which `wsd` decays linearly; None: a tenth of all."""
    final_share: float = 0.1
    """Share of the learning rate that is left at the end of its decay."""
    reference_batch: int | None = None
    """Global batch that the learning rate is meant for; None: the job's."""
    scaling: Scaling = "sqrt"
    """Rule by which the learning rate follows the global batch; a job that states none gets its policy's, or its optimizer's."""
    usual_scaling: bool = False
    """True if the job states no rule."""
    damping: int = 10
    """Number of batches over which the learning rate follows a batch that has grown, instead of at once.

    Adam's second moment has to follow, too (COPUS, appendix E).
    """
    statistics: Over = "micro-batches"
    """Gradients that gradient statistics compare."""
    statistics_every: int | None = None
    """Steps from one measured step to the next; the steps between are not measured. 0: no step is.

    None: the built-in trainer measures each step, and a user's own as many as cost at most 1% of its time.
    """
    profile_steps: int = 3
    """Steps at the beginning of a run whose passes are timed, part by part; 0: none.

    The memory of one step before them is measured, too.
    """
    workers_every: int | None = None
    """Steps over which each data-parallel worker summarises its metrics; None: no summaries."""
    validation: int = 0
    """Held-out samples, which training never uses."""
    validate_every: int | None = None
    """Training samples from one validation of the held-out loss to the next; None: a twentieth of all, if training has an end.

    The last validation is at the end.
    """
    checkpoint_s: float = 600.0
    """Seconds of training from one checkpoint to the next."""
    keep: int = 2
    """Number of checkpoints that are kept, the newest ones."""
    leave_timeout_s: float = 600.0
    """Seconds within which a user's own trainer has to save and leave when asked."""
    preemption_grace_s: float | None = None
    """Seconds from SIGTERM within which it has to do so, because the site then ends all processes; None: `leave_timeout_s`."""
    advise: bool | None = None
    """Log what the policy of a user's own trainer would do, and change nothing; None: in the trainer's first run."""
    least_batch: int | None = None
    """Smallest global batch that a policy may choose for a user's own trainer; None: no limit. The next fields are for it, too."""
    largest_batch: int | None = None
    changes_per_hour: float | None = None
    """Largest number of changes in an hour; None: no limit."""
    frozen: str = ""
    """Ranges of samples in which nothing changes, such as `0..2000,9000..10000`."""
