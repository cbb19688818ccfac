"""Define what each command prints under `--json`."""

from typing import Any, Literal

from oppa.cli.outputs.parts import (
    BreakEvenOutput,
    ChangeOutput,
    Configuration,
    EquivalenceOutput,
    ObjectiveOutput,
    Output,
    Pair,
    SpendingOutput,
    StudyOutput,
    TableRowOutput,
    TrialOutput,
)
from oppa.cli.outputs.runs import (
    PipelineOutput,
    PlannedStage,
    PolicyOutput,
    PooledBenchmarkOutput,
    ScaleTableOutput,
    SearchBenchmarkOutput,
    SimulationOutput,
    SpoolOutput,
    TraceOutput,
    TrainOutput,
)
from oppa.problem.selector import Violation
from oppa.trials.host import Check
from oppa.tuning.verification import Interval
from oppa.tuning.verify.verdict import Verdict


class LaunchLineChange(Output):
    """Describes a change of a launch line."""

    about: str
    old: str | None
    new: str | None


class LaunchLineOutput(Output):
    """Holds the user's own launch line with the winner's words."""

    words: list[str]
    changes: list[LaunchLineChange]
    files: list[str]


class TuneOutput(StudyOutput):
    """Holds the result of `oppa tune`."""

    launch_line: LaunchLineOutput | None = None


class ExpectedOutput(BreakEvenOutput):
    """States the expected cost and gain of a search."""

    trials: int
    repeats: int
    configurations_fitting: int
    least_memory_bytes: int
    startup_s: Pair
    startup_gpu_hours: float
    startup_interval_gpu_hours: Pair
    trial_time_too_short: float


class UnderstoodOutput(Output):
    """States the meaning of a launch line."""

    framework: str
    evidence: str
    values: list[dict[str, str]]
    varies: dict[str, list[Any]]
    kept: list[str]
    mounted: list[str]
    conflicts: list[dict[str, str]]
    notes: list[str]
    hints: list[str]
    job: str


class TunePlanOutput(Output):
    """Holds the plan of `oppa tune --dry-run`."""

    name: str
    configurations: int
    launcher: str
    software: dict[str, Any] | None
    limits: dict[str, Any]
    baseline: Configuration | None
    first: Configuration | None
    expected: ExpectedOutput | None
    transfer: dict[str, Any] | None = None
    proxy: dict[str, Any] | None = None
    study: dict[str, Any] | None = None
    understood: UnderstoodOutput | None = None


class FastestRow(Output):
    """Holds the fastest row of a global batch."""

    global_batch: int
    configuration: Configuration
    samples_per_s: float
    log_stddev: float
    memory_bytes: int | None
    source: Literal["measured", "predicted"]


class ProfileOutput(Output):
    """Holds the result of `oppa profile`."""

    table: str
    ended: str
    method: str
    complete: bool
    expected_loss: float | None
    trials: int
    seconds: float
    candidates: int
    pruned: int | None
    rows: int
    fastest: list[FastestRow]


class BatchPlanOutput(Output):
    """Counts the configurations of a global batch."""

    global_batch: int
    configurations: int
    fitting: int


class ProfilePlanOutput(Output):
    """Holds the plan of `oppa profile --dry-run`."""

    name: str
    launcher: str
    method: str
    loss_bound: float | None
    limits: dict[str, Any]
    batches: list[BatchPlanOutput]
    first: Configuration | None
    trials: list[int]
    seconds: Pair
    gpu_hours: Pair
    table: dict[str, Any] | None = None


class NoTableOutput(Output):
    """Holds the result of `oppa profile` if no configuration could run."""

    table: str
    ended: str
    rows: list[Any]


class VerifyPlanOutput(Output):
    """Holds the plan of `oppa verify --dry-run`."""

    study: str
    launcher: str
    rounds: int
    most_rounds: int
    margin: float
    configurations: dict[str, Configuration]
    changed: list[ChangeOutput]
    seconds: float
    gpu_hours: float


class VerdictOutput(Output):
    """Holds the verdict on one configuration."""

    role: str
    configuration: Configuration
    verdict: Verdict
    cause: str | None
    failed: str | None
    then: Interval | None
    now: Interval | None
    ratio: Interval | None
    id: str
    text: str


class VerifyOutput(Output):
    """Holds the result of `oppa verify`."""

    study: str
    measured: str
    verification: int
    folder: str
    date: str
    status: str
    summary: str
    regressions: list[str]
    margin: float
    software_recorded: bool
    changed: list[ChangeOutput]
    winner: VerdictOutput
    reference: VerdictOutput | None
    runner_up: VerdictOutput | None
    gain_then: Interval | None
    gain: Interval | None
    lead: Interval | None
    equivalence: EquivalenceOutput | None
    spent: SpendingOutput
    trials: list[TrialOutput]


class ShownStudyOutput(StudyOutput):
    """Holds the result of `oppa show STUDY`."""

    verifications: list[dict[str, Any]]
    surrogate: dict[str, Any] | None = None


class RankingOutput(Output):
    """Lists the fastest rows of a global batch."""

    global_batch: int
    fastest: TableRowOutput
    next_best: TableRowOutput | None
    first: TableRowOutput | None


class ShownTableOutput(Output):
    """Holds the result of `oppa show TABLE`."""

    table: str
    origin: dict[str, Any]
    batches: list[RankingOutput]
    switches: list[dict[str, Any]]
    featured: list[str]
    rows: list[TableRowOutput]


class InvalidOutput(Output):
    """Explains why a setting is not valid."""

    setting: str
    valid: Literal[False]
    violations: list[Violation]
    alternatives: dict[str, list[Any]]


class ExplainOutput(Output):
    """Explains a valid configuration; values are in the unit of the objective."""

    id: str
    valid: Literal[True]
    matches: int
    configuration: Configuration
    trials: int
    objective: ObjectiveOutput
    tried: dict[str, Any] | None
    value: float | None
    prediction: dict[str, float | int | None]
    usable_bytes: float
    probability_fits: float
    probability_better: float
    ratio: float
    best: dict[str, Any]
    framework: dict[str, Any] | None = None
    precision: str | None = None
    memory: dict[str, Any] | None = None
    time: dict[str, Any] | None = None


class WeightsOutput(Output):
    """Lists the files of weights that `oppa export` wrote."""

    files: list[str]


class ImportOutput(Output):
    """Holds the configuration that `oppa import` read."""

    baseline: Configuration
    ignored: list[str]
    notes: list[str]
    runner: str
    space: str


class HardwareOutput(Output):
    """Holds the figures of `oppa doctor --measure`."""

    device: str
    memory_bytes: int
    hosts: int
    devices_per_host: int
    software: str
    figures: list[dict[str, Any]]
    nodes: list[dict[str, Any]]
    slow_nodes: list[dict[str, Any]]
    known_device: str
    file: str | None


class EnvironmentOutput(Output):
    """Describes an environment of a runner."""

    runner: str
    state: str
    path: str
    python: str
    packages: dict[str, str]


OUTPUTS: dict[str, Any] = {
    "tune": TuneOutput | TunePlanOutput,
    "profile": ProfileOutput | NoTableOutput | ProfilePlanOutput,
    "verify": VerifyOutput | VerifyPlanOutput,
    "show": ShownStudyOutput | ShownTableOutput,
    "explain": ExplainOutput | InvalidOutput,
    "export": dict[str, str] | WeightsOutput,
    "import": ImportOutput,
    "predict": dict[str, bool | int | float | str | None],
    "space": Configuration,
    "doctor": list[Check] | HardwareOutput,
    "env list": list[EnvironmentOutput],
    "train": TrainOutput,
    "plan": list[PlannedStage],
    "train-policy": PolicyOutput,
    "scale-table": ScaleTableOutput,
    "pipeline-schedule": PipelineOutput,
    "cluster status": SpoolOutput,
    "cluster simulate": SimulationOutput,
    "cluster generate": TraceOutput,
    "bench": list[dict[str, Any]],
    "bench search": SearchBenchmarkOutput | PooledBenchmarkOutput,
}
"""Types of what commands print under `--json`, by their words. Files of `oppa export` are texts by their names; weights are listed."""
LINES = ("predict", "space")
"""Commands that print one value a line."""
