"""Define the input of a policy, the state of a job, and its output, a decision.

A policy runs between two optimizer steps. It returns one of the three commands of COPUS, Algorithm 2. The decision also records the
alternatives, so that a reader can follow it later.
"""

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Any, Protocol, Self

from oppa.problem.configuration import Configuration
from oppa.problem.training import Over, Scaling
from oppa.protocol.worker import WorkerState
from oppa.table.rows import same_strategy
from oppa.units import format_seconds

HEALTHY = "healthy"
"""Value of `health` for a reliable noise scale."""


class DecisionKind(enum.StrEnum):
    """Names a command to a job (COPUS, section 4.3, and appendix E)."""

    NO_OP = "no_op"
    """Continue unchanged."""
    SCALE_BS = "scale_bs"
    """Change batch sizes in the same layout."""
    RECONFIGURE = "reconfigure"
    """Change the layout, and possibly batch sizes."""
    ROLL_BACK = "roll_back"
    """Restore the weights from before the loss rose (COPUS, appendix E)."""


class Limit(enum.StrEnum):
    """Names the reason why a policy did not choose a better candidate."""

    UNHEALTHY = "unhealthy"
    """The noise scale is unreliable."""
    WARM_UP = "warm-up"
    """The learning rate still rises, so the value of a batch still changes."""
    UNKNOWN = "unknown"
    """An input of the policy is unknown, for example the throughput of the present configuration."""
    MARGIN = "margin"
    """The best candidate is not better by the switching margin."""
    COST = "cost"
    """The change of layout would not pay off in the rest of the run."""
    GROWTH = "growth"
    """The batch would grow by more than the allowed factor."""
    UNBUILDABLE = "barred"
    """An earlier attempt to build the configuration failed."""
    SPIKE = "spike"
    """The loss rose and stayed up at this batch size."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """Holds the state of a job between two steps. Times are seconds on the job's own clock."""

    configuration: Configuration
    noise_scale: float | None
    """Gradient noise scale phi in sequences, calibrated and smoothed; None before the first estimate."""
    health: str = HEALTHY
    """State of the noise-scale estimate: `healthy`, or the estimator's reason why it is unreliable."""
    variance_ratio: float | None = None
    """V / |g|^2 of the norm test at the last step, in sequences; None if it was not measured or could not be determined."""
    worker_variance_ratio: float | None = None
    """The same ratio with V of eq. 5, which compares workers."""
    local_batches: tuple[int, ...] = ()
    """Samples of each worker; empty if all have the same."""
    workers: tuple[WorkerState, ...] = ()
    """Report of each worker on the window that has just ended; empty if none has."""
    losses: tuple[float, ...] = ()
    """Losses of the steps of that window."""
    accuracy: float | None = None
    """Accuracy on held-out samples at the last validation; None before one."""
    steps_per_s: float | None = None
    """Measured steps per second in this configuration; None before it is known."""
    elapsed_s: float = 0.0
    """Seconds since training began, pauses included."""
    reconfiguring_s: float = 0.0
    """The part of `elapsed_s` spent on changes of layout."""
    reconfiguration_s: float = 0.0
    """Expected seconds of the next change of layout, or of the next restart."""
    samples: int = 0
    """Samples seen since training began."""
    remaining_samples: int | None = None
    """Samples until training ends; None if unknown."""
    warming_up_samples: int = 0
    """Samples until the learning-rate warm-up ends; 0 from then on."""
    unbuildable: frozenset[Configuration] = frozenset()
    """Configurations that could not be built."""
    restarting: frozenset[Configuration] = frozenset()
    """Configurations that the job reaches only by a restart; a change to another layout takes time in any case."""
    too_large: float = math.inf
    """Smallest excluded global batch, in sequences, because the loss rose at that size."""

    @property
    def is_too_large(self) -> bool:
        """Return True if the present batch is excluded itself: a trainer that is not rolled back has it until a policy reduces it."""
        return self.configuration.global_batch >= self.too_large

    @property
    def useful_s(self) -> float:
        """Return the seconds outside changes of layout (T_useful of COPUS, Algorithm 2)."""
        return self.elapsed_s - self.reconfiguring_s

    def pays_for(self, configuration: Configuration) -> bool:
        """Return True if a change to a configuration takes `reconfiguration_s`: to another layout, or by a restart."""
        return configuration in self.restarting or not same_strategy(configuration, self.configuration)

    def cost_of(self, configuration: Configuration) -> str:
        """Return the end of a reason that states the time of a change to a configuration; empty if it takes none."""
        return f"; the change takes {format_seconds(self.reconfiguration_s)}" if self.pays_for(configuration) else ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Describes a candidate: a configuration with its goodput at the present noise scale."""

    configuration: Configuration
    samples_per_s: float
    goodput: float
    """Goodput of COPUS eq. 7, in equivalent sequences per second at batch size 1; comparable only within one decision."""

    @property
    def efficiency(self) -> float:
        """Return goodput over throughput: the progress per sequence, including the learning-rate factor."""
        return self.goodput / self.samples_per_s

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            "configuration": self.configuration.to_dict(),
            "id": self.configuration.id,
            "samples_per_s": self.samples_per_s,
            "efficiency": self.efficiency,
            "goodput": self.goodput,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the option that `to_dict` wrote."""
        configuration = Configuration.from_dict(values["configuration"])
        return cls(configuration=configuration, samples_per_s=values["samples_per_s"], goodput=values["goodput"])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Holds a policy's choice, its reason and its alternatives."""

    command: DecisionKind
    configuration: Configuration
    """Configuration from the next step on; the present one under `no_op`."""
    reason: str
    """Human-readable reason."""
    local_batches: tuple[int, ...] = ()
    """Samples of each worker; empty if all get the same."""
    limits: tuple[Limit, ...] = ()
    current: Option | None = None
    """The present configuration with its goodput; None if its throughput is unknown."""
    chosen: Option | None = None
    """The chosen configuration; its goodput may include the cost of a change of layout. None if nothing was compared."""
    onward: Configuration | None = None
    """Final target, if the chosen configuration is only an intermediate step to it."""
    before_step: int | None = None
    """Step before which `roll_back` restores the weights."""
    best: tuple[Option, ...] = ()
    """Up to three candidates with the largest goodput, including those that a limit excludes."""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            "command": self.command.value,
            "configuration": self.configuration.to_dict(),
            "local_batches": list(self.local_batches),
            "reason": self.reason,
            "before_step": self.before_step,
            "limits": [limit.value for limit in self.limits],
            "current": self.current and self.current.to_dict(),
            "chosen": self.chosen and self.chosen.to_dict(),
            "best": [option.to_dict() for option in self.best],
        }


class Policy(Protocol):
    """Chooses the configuration of a job. It keeps no state of its own, so that equal job states give equal decisions."""

    measures: Over = "micro-batches"
    """Gradients that the job compares to measure noise: of micro-batches, or of workers."""
    restless: bool = False
    """True if the policy runs after every step."""
    interval: int | None = None
    """Steps between two gradient measurements; the policy runs after each one.

    None: the policy needs no measurement at a certain step, and runs at the controller's decision interval.
    """

    scaling: Scaling | None = None
    """Rule by which the learning rate follows the batch in a job that states none; None: that of its optimizer."""

    window: int | None = None
    """Steps of a window that workers summarise; the policy then runs only after a window. None: it needs no worker reports."""

    def decide(self, state: JobState) -> Decision:
        """Return what the job should do before the next step."""

    def undo(self, state: JobState, came_from: Configuration) -> Decision | None:
        """Return a decision to revert the last change, once its effect is measured; None if the change is kept."""
        return None

    def restarts(self, before: Configuration, after: Configuration) -> bool:
        """Return True if a change between two configurations takes time: between layouts, or by a restart."""
        return not same_strategy(before, after)


def reject_unreliable(state: JobState) -> Decision | None:
    """Return a No-Op if the noise scale is unreliable or not yet representative, else None.

    While the learning rate rises, the model learns word frequencies, almost without gradient noise. Measurements from then predict little
    about later training.
    """
    if state.warming_up_samples:
        reason = f"the learning rate still rises, for {state.warming_up_samples:,} samples more"
        return stay(state, reason, Limit.WARM_UP)
    if state.health == HEALTHY and state.noise_scale is not None:
        return None
    return stay(state, f"the noise scale is unreliable: {state.health}", Limit.UNHEALTHY)


def stay(state: JobState, reason: str, *limits: Limit, **weighed: Any) -> Decision:
    """Return a No-Op with a reason; `weighed` sets further fields of the decision."""
    present, local_batches = state.configuration, state.local_batches
    return Decision(command=DecisionKind.NO_OP, configuration=present, local_batches=local_batches, reason=reason, limits=limits, **weighed)
