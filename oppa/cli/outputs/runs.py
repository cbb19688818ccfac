"""Define what commands of pipelines, training runs, clusters and benchmarks print under `--json`."""

from typing import Any, Literal

from oppa.cli.outputs.parts import Configuration, Output
from oppa.cluster.comparison import QueueingTimes
from oppa.control.rl.evaluation import PolicyScore


class PipelineOutput(Output):
    """Holds the figures of a pipeline schedule."""

    model: str
    pp: int
    microbatches: int
    schedule: str
    memory_limit: float | None
    bubble_rate: float
    peak_memory: list[float]
    longest_span_ms: float
    least_span_ms: float | None
    chunks: int
    folded: bool
    recomputed: list[Any]
    critical_path: dict[str, float]


class TrainOutput(Output):
    """Holds the result of `oppa train`."""

    run: str
    ending: Literal["finished", "stopped", "failed", "revoked"]
    cause: str
    attempts: int
    seconds: float
    steps: int
    samples: int
    configuration: str | None
    global_batch: int | None
    micro_batch: int | None
    loss: float | None
    noise_scale: float | None
    health: str | None
    validation_loss: float | None
    checkpoint: str | None
    worth: dict[str, Any] | None
    advice: dict[str, Any] | None = None


class PlannedStage(Output):
    """Describes a stage of `oppa plan`."""

    tokens: int
    samples: int
    configuration: Configuration
    reason: str


class PolicyOutput(Output):
    """Holds the result of `oppa train-policy`."""

    policy: str
    scores: list[PolicyScore] | None = None
    episodes: Any = None


class ScaleTableOutput(Output):
    """Holds the result of `oppa scale-table`."""

    table: str
    entries: list[dict[str, Any]]


class SpoolOutput(Output):
    """Lists the jobs of `oppa cluster status`."""

    jobs: list[dict[str, Any]]


class SimulationOutput(Output):
    """Holds the result of `oppa cluster simulate`: one row for each policy."""

    rows: list[dict[str, Any]]


class TraceOutput(Output):
    """Holds the queueing times of `oppa cluster generate`."""

    jobs: int
    utilisation: float
    queue_s: float
    published_queue_s: float
    kinds: list[QueueingTimes]


class SearchBenchmarkOutput(Output):
    """Holds the result of `oppa bench search` on one suite."""

    designers: dict[str, Any]
    ratio_to_best_peer: float | None
    best_peer: str | None
    apart: dict[str, Any]
    tasks: dict[str, Any]
    environment: dict[str, str]


class PooledBenchmarkOutput(Output):
    """Holds the result of `oppa bench search` on every suite."""

    suites: dict[str, SearchBenchmarkOutput]
    pooled: SearchBenchmarkOutput
    leads: list[dict[str, Any]]
    seconds_ratio: dict[str, dict[str, Any]]
    adversarial: list[dict[str, Any]]
    skipped: dict[str, str]
    environment: dict[str, str]
