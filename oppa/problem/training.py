"""How the model is trained, how much a study may spend, and how it searches."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

Scaling = Literal["sqrt", "linear", "none"]
"""How the learning rate follows the global batch: as its square root (Adam's rule, COPUS eq. 9), in proportion (SGD's), not at all."""
USUAL_SCALING: Mapping["Optimizer", Scaling] = {"adamw": "sqrt", "sgd": "linear"}

Optimizer = Literal["adamw", "sgd"]

Over = Literal["micro-batches", "workers"]
"""What is compared with a step's mean gradient, to tell how noisy it is."""


COLLECTIVE_TIMEOUT_S = 300.0

SAME_RESULTS = ("reduce_in_rank_order", "collective_timeout_s")
"""Fields that change no result beyond rounding; a run may go on with others."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a training run needs to know beyond model, configuration and cluster."""

    precision: str = "fp32"
    """`fp32` or `bf16`."""
    optimizer: Optimizer = "adamw"
    learning_rate: float = 3e-4
    momentum: float = 0.9
    """Of SGD."""
    adam_beta2: float = 0.999
    """How much of the second moment AdamW keeps from step to step. Where the batch grows, the moment must follow: 0.95 does in 20 steps."""
    gradient_clipping: float = 0.0
    """The largest norm of a step's gradient; 0: whatever it is."""
    reduce_in_rank_order: bool = False
    """Add replicas' gradients in the order of ranks, after the backward pass: pipelines of any length compute the same bits."""
    seed: int = 0
    collective_timeout_s: float = COLLECTIVE_TIMEOUT_S
    """How long a rank waits for its peers, when they meet and in a collective."""
    corpus: str = ""
    """A folder of text to train on, all of it; empty: the first 4 MiB of the sources of Python's standard library."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as they are written to JSON; `Training(**values)` is the inverse.

        Fields that change no result are left out at their defaults, so fingerprints of older studies hold.
        """
        values, usual = dataclasses.asdict(self), Training()
        return {name: value for name, value in values.items() if name not in SAME_RESULTS or value != getattr(usual, name)}

    @property
    def adam_betas(self) -> tuple[float, float]:
        """Of AdamW."""
        return 0.9, self.adam_beta2

    @property
    def moments(self) -> tuple[str, ...]:
        """What the optimizer keeps of each weight, as torch calls it."""
        if self.optimizer == "adamw":
            return "exp_avg", "exp_avg_sq"
        return ("momentum_buffer",) if self.momentum else ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a study and each of its trials may spend."""

    trials: int | None = None
    """Search trials of the whole study, verification repeats not counted; None: no limit."""
    wall_time_s: float | None = None
    """Wall-clock time of the search, over all sittings; the trial that runs when it is spent is finished. None: no limit."""
    trial_time_s: float = 120.0
    """A trial that takes longer is ended: `timed_out`."""
    q_min: int = 5
    """Steps of every trial before early termination is considered (OPPA eq. 5)."""
    q_max: int = 30
    """Steps of a complete trial, the first (warm-up) included (OPPA Table 2)."""
    repeats: int = 3
    """Runs of the winner and of the default configuration at the end, interleaved."""
    grace_s: float = 5.0
    """Between asking a process to end and killing it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Choices of the search that the papers leave open."""

    stopping: str | None = None
    """When a trial may end early, by the name of a rule in `oppa.tuning.stopping`; None: as the designer does it."""
    acquisition: str = "improvement"
    """What a designer looks for: `improvement` on the incumbent, or `ucb`, the upper confidence bound of OPPA eq. 4."""
    beta: float | None = 1.0
    """How much a designer likes what it is uncertain of (OPPA eq. 4); None: the schedule of eq. 32."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How `oppa train` trains, counted in samples (sequences, or images): the batch size may change at any step."""

    samples: int | None = None
    """Where training ends; None: behind one epoch."""
    warmup_samples: int = 0
    """The learning rate rises from 0 over so many."""
    decay: str = "none"
    """How it falls from there to the end: `none`, `linear` or `cosine`."""
    final_share: float = 0.1
    """Of the learning rate, where it has fallen to at the end."""
    reference_batch: int | None = None
    """The global batch that the learning rate is meant for; None: the job's."""
    scaling: Scaling = "sqrt"
    """How it follows the global batch; unless a job says so, as its optimizer's rule is."""
    damping: int = 10
    """It follows a batch that has grown over so many batches, not at once: Adam's second moment has to follow, too (COPUS, appendix E)."""
    statistics: Over = "micro-batches"
    """What gradient statistics compare."""
    statistics_every: int = 1
    """Steps from one that is measured to the next; nothing is measured in between."""
    profile_steps: int = 3
    """Steps at the beginning of a run whose passes are timed, part by part; the memory of one before them is looked at, too. 0: none."""
    workers_every: int | None = None
    """Steps over which each data-parallel worker sums itself up; None: it does not."""
    validation: int = 0
    """Samples that training never sees."""
    validate_every: int | None = None
    """Samples of training from one look at their loss to the next; None: a twentieth of all, if training has an end. One look is at it."""
    checkpoint_s: float = 600.0
    """Seconds of training from one checkpoint to the next."""
    keep: int = 2
    """Checkpoints that stay: the newest."""
