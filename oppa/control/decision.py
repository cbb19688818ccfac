"""What a policy is told of a job, and what it answers.

A policy is asked between two optimizer steps. It answers with one of the three commands of COPUS, Algorithm 2, and with all that it
weighed, so that whoever reads the decision later can follow it.
"""

import dataclasses
import enum
import math
from typing import Any, Protocol

from oppa.problem.configuration import Configuration
from oppa.problem.training import Over
from oppa.protocol.worker import WorkerState

HEALTHY = "healthy"
"""Of a noise scale that can be believed."""


class Command(enum.StrEnum):
    """What a job is told (COPUS, section 4.3, and appendix E)."""

    NO_OP = "no_op"
    """Go on as it is."""
    SCALE_BS = "scale_bs"
    """Take batches of other sizes, in the same layout."""
    RECONFIGURE = "reconfigure"
    """Change the layout, and batch sizes with it."""
    ROLL_BACK = "roll_back"
    """Go back to the weights from before the loss rose (COPUS, appendix E)."""


class Limit(enum.StrEnum):
    """What kept a policy from what it would have chosen otherwise."""

    UNHEALTHY = "unhealthy"
    """The noise scale cannot be believed."""
    WARM_UP = "warm-up"
    """The learning rate still rises, and with it what a batch is worth."""
    UNKNOWN = "unknown"
    """What the policy goes by is not known: the throughput of the present configuration, say."""
    MARGIN = "margin"
    """The best is not better by the switching margin."""
    COST = "cost"
    """The change of layout would not pay in what is left."""
    GROWTH = "growth"
    """The batch may not grow so much at once."""
    BARRED = "barred"
    """It could not be built when it was tried."""
    SPIKE = "spike"
    """The loss rose and stayed up when the batch was as large."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A job between two steps. Times are seconds of the job's own clock."""

    configuration: Configuration
    noise_scale: float | None
    """phi in sequences, calibrated and smoothed; None before there is one."""
    health: str = HEALTHY
    """Of the noise scale, in the estimator's own words; `healthy`, or why it cannot be believed."""
    variance_ratio: float | None = None
    """V / |g|^2 of the norm test, in sequences, of the last step; None where that was not measured, or does not tell."""
    worker_variance_ratio: float | None = None
    """The same with the V of eq. 5, where workers are compared."""
    local_batches: tuple[int, ...] = ()
    """Of each worker, where they differ."""
    workers: tuple[WorkerState, ...] = ()
    """What each worker says of the window that has just ended; none where none has."""
    losses: tuple[float, ...] = ()
    """Of that window's steps."""
    accuracy: float | None = None
    """Of held-out samples, when they were last looked at."""
    steps_per_s: float | None = None
    """That steps in this configuration have had; None before that is known."""
    elapsed_s: float = 0.0
    """Since training began, everything included."""
    reconfiguring_s: float = 0.0
    """Of these, spent on changes of layout so far."""
    reconfiguration_s: float = 0.0
    """That one more is expected to take, as the last ones did."""
    samples: int = 0
    """Seen so far."""
    remaining_samples: int | None = None
    """Until training ends; None where nobody knows."""
    warming_up_samples: int = 0
    """Until the learning rate has risen; 0 from then on."""
    barred: frozenset[Configuration] = frozenset()
    """What could not be built when it was tried."""
    too_large: float = math.inf
    """Batches of this size and more have made the loss rise, in sequences."""

    @property
    def useful_s(self) -> float:
        """Time that steps had (T_useful of COPUS, Algorithm 2)."""
        return self.elapsed_s - self.reconfiguring_s


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A configuration, and what it is worth at the noise scale of the moment."""

    configuration: Configuration
    samples_per_s: float
    goodput: float
    """COPUS eq. 7, in sequences per second of what a batch of one would do; comparable within one decision."""

    @property
    def efficiency(self) -> float:
        """The other factor: what a sequence is worth, the learning rate's part included."""
        return self.goodput / self.samples_per_s

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "configuration": self.configuration.to_dict(),
            "id": self.configuration.id,
            "samples_per_s": self.samples_per_s,
            "efficiency": self.efficiency,
            "goodput": self.goodput,
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a policy wants, and why."""

    command: Command
    configuration: Configuration
    """To train in from now on; under No-Op the present one."""
    reason: str
    """A sentence for people."""
    local_batches: tuple[int, ...] = ()
    """Of each worker, where they are to differ."""
    limits: tuple[Limit, ...] = ()
    current: Option | None = None
    """None where its throughput is not known."""
    chosen: Option | None = None
    """None where nothing was weighed; what another layout costs to get to is taken off its goodput."""
    onward: Configuration | None = None
    """What the chosen is but a step to."""
    before_step: int | None = None
    """Weights should be as before this step, where they are to go back."""
    best: tuple[Option, ...] = ()
    """The three largest goodputs of the table, whether or not anything speaks against them."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
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
    """Chooses what a job trains in; it has no memory, so that the same situation is answered alike."""

    measures: Over = "micro-batches"
    """What of its steps' gradients a job has to compare for it."""
    restless: bool = False
    """Whether it is asked behind every step."""
    interval: int | None = None
    """Steps from one that is measured to the next, behind each of which it is asked; None: all are, and it is asked now and then."""

    window: int | None = None
    """Steps over which workers sum themselves up for it; it is asked behind each window, and not otherwise."""

    def decide(self, situation: Situation) -> Decision:
        """What to do before the next step."""
        ...

    def undo(self, situation: Situation, came_from: Configuration) -> Decision | None:
        """Back, now that the present configuration has shown what it brings; None where the change stands."""
        return None


def disbelief(situation: Situation) -> Decision | None:
    """No-Op where the noise scale cannot be believed, or says little of what is to come; None where it can.

    While the learning rate rises the loss falls by what words are frequent, and almost without noise: what is seen then says little of
    what is to come.
    """
    if situation.warming_up_samples:
        reason = f"the learning rate still rises, for {situation.warming_up_samples:,} samples more"
        return stay(situation, reason, Limit.WARM_UP)
    if situation.health == HEALTHY and situation.noise_scale is not None:
        return None
    return stay(situation, f"the noise scale cannot be believed: {situation.health}", Limit.UNHEALTHY)


def stay(situation: Situation, reason: str, *limits: Limit, **weighed: Any) -> Decision:
    """No-Op, for a reason."""
    present, local_batches = situation.configuration, situation.local_batches
    return Decision(command=Command.NO_OP, configuration=present, local_batches=local_batches, reason=reason, limits=limits, **weighed)
