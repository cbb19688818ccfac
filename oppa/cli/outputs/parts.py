"""Define the values that several commands print."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from oppa.trials.trial_folder import Outcome
from oppa.tuning.calibration import TrackRecord

Configuration = dict[str, bool | int | float | str | dict[str, dict[str, bool | str]]]
"""Values by parameter. `global_batch` and `micro_batch` are in sequences."""
Pair = list[float]
"""Lower and upper end of an interval of 95%."""


class Output(BaseModel):
    """Describes an object that a command prints; a field with a default may be missing."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ObjectiveOutput(Output):
    """Describes the quantity that the search optimises."""

    unit: str
    better: Literal["higher", "lower"]


class TrialOutput(Output):
    """Describes a trial; values that it did not measure are null."""

    id: int
    configuration: Configuration
    outcome: Outcome
    cause: str | None
    steps: int
    steps_per_s: float | None
    stddev: float | None
    memory_bytes: int | None
    predicted_steps_per_s: float | None
    predicted_log_stddev: float | None
    predicted_memory_bytes: int | None
    seconds: float
    hosts: list[str] = []


class ContenderOutput(Output):
    """Describes a configuration that took part in the final comparison."""

    configuration: Configuration
    steps_per_s: float | None
    """Geometric mean over the repeats; null before the first one."""
    steps_per_s_search: float | None
    """Geometric mean over its trials in the search."""
    memory_bytes: int | None
    objective: float | None = None


class EquivalenceOutput(Output):
    """Compares the losses of two configurations."""

    holds: bool
    reference: str
    steps: int
    deviation: float | None
    """Largest relative difference of the two losses of a step; null if only one of them is finite, or no step is compared."""
    at_step: int
    tolerance: float
    own_deviation: float | None
    """The same difference between two repeats of the reference; null also if there are none to compare."""


class SpendingOutput(Output):
    """States the time for which the devices were held, and its price."""

    gpu_hours: float
    cost: float | None
    currency: str | None
    limit: float | None
    startup_gpu_hours: float
    steps_gpu_hours: float
    idle_gpu_hours: float
    proxy_gpu_hours: float | None = None


class BreakEvenOutput(Output):
    """Compares the cost of a search with the time that its winner saves."""

    search_s: float
    search_interval_s: Pair
    search_gpu_hours: float
    search_cost: float | None
    reference: str
    speed_up: float | None
    speed_up_interval: Pair | None
    pays_after_s: float | None
    pays_after_interval_s: list[float | None] | None
    run_s: float | None
    net_s: float | None
    net_gpu_hours: float | None
    net_cost: float | None


class ProxyOutput(Output):
    """Describes the study of the smaller size."""

    study: str
    hosts: int
    layers: int
    global_batch: int
    trials: int
    gpu_hours: float


class DamagedOutput(Output):
    """Names a trial whose record is damaged and counts for nothing."""

    id: int
    fault: str


class ChangeOutput(Output):
    """Describes a difference between two environments."""

    name: str
    then: str
    now: str


class TableRowOutput(Output):
    """Holds a row of a table."""

    strategy: str
    configuration: Configuration
    steps_per_s: float
    samples_per_s: float
    stddev: float
    log_stddev: float
    memory_bytes: int | None
    source: Literal["measured", "predicted"]
    trials: list[int]
    slower_by: float | None = None


class StudyOutput(Output):
    """Holds the result of a study so far; null where a value is missing."""

    study: str
    proxy: ProxyOutput | None = None
    objective: ObjectiveOutput | None = None
    """The quantity that the search optimises; missing if it is the throughput."""
    software: dict[str, Any] | None
    ended: str | None
    best: ContenderOutput | None
    default: ContenderOutput | None
    baseline: ContenderOutput | None
    baseline_failure: TrialOutput | None
    runner_up: ContenderOutput | None
    gain: float | None
    """Speed-up of the winner over the baseline, or over the default."""
    gain_interval: Pair | None
    tied: bool | None
    lead: float | None
    """Speed-up of the winner over the runner-up."""
    lead_interval: Pair | None
    equivalence: EquivalenceOutput | None
    predicted: TrackRecord | None
    spent: SpendingOutput
    break_even: BreakEvenOutput | None
    verification: list[TrialOutput]
    default_trials: list[TrialOutput]
    trials: list[TrialOutput]
    drift_trials: list[TrialOutput] = []
    """Repeats of the incumbent, which show whether the machine has become slower or faster; missing if there is none."""
    drift: float | None = None
    """Share by which the machine became faster in the search, negative if slower; 0 if no drift is significant."""
    damaged: list[DamagedOutput]
