"""Run pipelines, and compare them with predictions from one profile: other layouts and other schedules (FlexTrain, sections 4.4 and 7.2).

Each rank represents a device and has a CPU quota. The quota's period is so short that a waiting rank saves up almost no CPU time.
A machine's speed drifts by ten percent within minutes, so everything runs in rounds. Each round is predicted from its own profile.
"""

import contextlib
import dataclasses
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from scipy.stats import spearmanr

from experiments.lib.rank_pool import PoolRequest, RankPool
from experiments.pipelines.elastic import Chain
from oppa.errors import EnvironmentLackingError, InputError
from oppa.pipeline.execution import Execution
from oppa.pipeline.from_configuration import schedule_of, stages_of
from oppa.pipeline.prediction import PipelineEstimate, predict
from oppa.pipeline.profile import PipelineProfile
from oppa.pipeline.replication import Replication
from oppa.pipeline.stage_layout import BALANCED
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.trials.cgroups import CpuGroups
from oppa.trials.trial_folder import write_json

MODEL = Model(name="small", layers=8, hidden=192, heads=4, kv_heads=4, ffn=512, vocab=512, seq_len=128)
HEAVY = dataclasses.replace(MODEL, name="heavy-ended", layers=6, vocab=6144)
"""Model whose output projection takes as long as two or three layers."""
CPUS, PERIOD_US, RANKS = 0.45, 5_000, 4
STEPS = 3
"""Timed steps of each configuration; two steps before them are not timed."""
FILE = "measured.json"


def _configuration(dp: int, pp: int, schedule: str = "1f1b", chunks: int = 1) -> Configuration:
    return Configuration(dp=dp, pp=pp, schedule=schedule, model_chunks=chunks, global_batch=32, micro_batch=4)


PROFILED = (_configuration(1, 2), _configuration(1, 2, "zb-h1"))
"""Configurations of the profiled run: one schedule with whole backward passes, and one that splits them."""
LAYOUTS = tuple(_configuration(dp, pp) for dp, pp in ((1, 1), (1, 3), (1, 4), (2, 1), (2, 2), (4, 1)))
ORDERS = tuple(
    _configuration(1, RANKS, name, chunks)
    for name, chunks in (
        *(("memory-minimal", 1), ("gpipe", 1), ("1f1b", 1), ("interleaved", 2)),
        *(("zb-h1", 1), ("zb-h2", 1), ("zb-v", 2), ("dualpipe-v", 2), ("search", 1), ("search", 2)),
    )
)
BALANCE = (_configuration(1, RANKS), dataclasses.replace(_configuration(1, RANKS), stage_layout=BALANCED))
"""Configurations of the heavy-ended model: stages with equal numbers of layers, and stages with equal operations."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """Holds the measurement of one pipeline in one round."""

    configuration: Configuration
    steps_s: tuple[float, ...]
    peak_bytes: int
    """Peak memory of the rank that held most, in bytes."""

    @property
    def step_s(self) -> float:
        """Return the median step time, in seconds."""
        return statistics.median(self.steps_s)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Holds a profile and the pipelines that ran after it."""

    profile: PipelineProfile
    ran: tuple[PipelineRun, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        ran = [{**dataclasses.asdict(each), "configuration": each.configuration.to_dict()} for each in self.ran]
        return {"profile": self.profile.to_dict(), "ran": ran}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read a round from the values of `to_dict`."""
        ran = (
            PipelineRun(
                configuration=Configuration.from_dict(each["configuration"]), steps_s=tuple(each["steps_s"]), peak_bytes=each["peak_bytes"]
            )
            for each in values["ran"]
        )
        return cls(profile=PipelineProfile.from_dict(values["profile"]), ran=tuple(ran))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Compares one pipeline over all rounds, by medians of times and predictions and by the largest measured memory."""

    configuration: Configuration
    measured_s: float
    predicted_s: float
    error: float
    """Median over the rounds of predicted / measured step time - 1."""
    errors: tuple[float, ...]
    """Predicted / measured step time - 1 in each round."""
    measured_bytes: int
    predicted_bytes: float

    @property
    def memory_error(self) -> float:
        """Return predicted / measured memory - 1."""
        return self.predicted_bytes / self.measured_bytes - 1


def measure(rounds: int, tell: Callable[[str], None]) -> tuple[list[Round], list[Round]]:
    """Run all layouts and schedules, and both stage layouts of the heavy-ended model, in each of `rounds` rounds.

    Returns:
        The rounds of the first model, and those of the heavy-ended model.

    Raises:
        EnvironmentLackingError: ranks cannot be given CPU quotas on this machine, or fail.
    """
    with _groups() as groups, RankPool() as pool:

        def run(model: Model, layouts: Sequence[Configuration]) -> Sequence[Any]:
            own = tuple(str(group) for group in groups.ranks[: layouts[0].devices])
            return pool.run(PoolRequest(program="pipeline", model=model, layouts=tuple(layouts), pairs=STEPS, groups=own)).answers

        def once(model: Model, configurations: Sequence[Configuration], where: str) -> Round:
            tell(f"{where}: a profile of the {model.name} model")
            profile = PipelineProfile.from_dict(run(model, PROFILED)[0]["profile"])
            ran = []
            for configuration in configurations:
                tell(f"{where}: {configuration.id}")
                answers = run(model, [configuration])
                peak = max(each["peak_bytes"] for each in answers)
                ran.append(PipelineRun(configuration=configuration, steps_s=tuple(answers[0]["steps_s"][0]), peak_bytes=peak))
            return Round(profile=profile, ran=tuple(ran))

        found, balance = [], []
        for number in range(rounds):
            where = f"round {number + 1} of {rounds}"
            found.append(once(MODEL, (*LAYOUTS, *ORDERS), where))
            balance.append(once(HEAVY, BALANCE, where))
        return found, balance


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Holds all measurements of the benchmark."""

    rounds: Sequence[Round]
    balance: Sequence[Round]
    """Rounds of the heavy-ended model."""
    elastic: Mapping[str, Chain]


def write(folder: Path, measured: Measured) -> None:
    """Write the measurements to a file in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    rounds, balance = ([each.to_dict() for each in those] for those in (measured.rounds, measured.balance))
    chains = {name: dataclasses.asdict(chain) for name, chain in measured.elastic.items()}
    write_json(folder / FILE, {"rounds": rounds, "balance": balance, "elastic": chains})


def read(folder: Path) -> Measured:
    """Read the measurements that `write` stored; raises InputError if the file is missing or invalid."""
    try:
        values = json.loads((folder / FILE).read_text())
        rounds, balance = ([Round.from_dict(each) for each in values[name]] for name in ("rounds", "balance"))
        return Measured(rounds=rounds, balance=balance, elastic={name: Chain.from_dict(each) for name, each in values["elastic"].items()})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"`{folder / FILE}` cannot be read: {error}", hint="run `oppa bench pipelines --run`") from None


def compared(rounds: Sequence[Round], configurations: Sequence[Configuration], model: Model = MODEL) -> list[Compared]:
    """Compare predictions with measurements, for each configuration."""
    return [_compared(rounds, configuration, model) for configuration in configurations]


def rank_correlation(rows: Sequence[Compared]) -> float:
    """Return Spearman's rank correlation of predicted and measured step times."""
    return float(spearmanr([row.predicted_s for row in rows], [row.measured_s for row in rows]).statistic)


def predicted(profile: PipelineProfile, configuration: Configuration, model: Model = MODEL) -> PipelineEstimate:
    """Return the estimate of a step in a configuration."""
    request, stages = schedule_of(configuration), stages_of(configuration, model)
    return predict(profile, request, Replication(dp=configuration.dp, zero_stage=configuration.zero_stage), stages=stages)


def _compared(rounds: Sequence[Round], configuration: Configuration, model: Model) -> Compared:
    pairs = [
        (predicted(each.profile, configuration, model), ran) for each in rounds for ran in each.ran if ran.configuration == configuration
    ]
    errors = [one.step_s / ran.step_s - 1 for one, ran in pairs]
    return Compared(
        configuration=configuration,
        measured_s=statistics.median(ran.step_s for _, ran in pairs),
        predicted_s=statistics.median(one.step_s for one, _ in pairs),
        error=statistics.median(errors),
        errors=tuple(errors),
        measured_bytes=max(ran.peak_bytes for _, ran in pairs),
        predicted_bytes=statistics.median(one.peak_bytes for one, _ in pairs),
    )


@contextlib.contextmanager
def _groups() -> Iterator[CpuGroups]:
    try:
        groups = CpuGroups("pipelines", [CPUS] * RANKS, period_us=PERIOD_US)
    except OSError as error:
        raise EnvironmentLackingError(
            f"ranks cannot be given CPU quotas: {error}", hint="run it on a machine with writable control groups"
        ) from None
    try:
        yield groups
    finally:
        groups.close()


def passes_as_written_s(executed: Execution) -> float:
    """Return the seconds of the passes by equations 7 and 8 of FlexTrain as they are written.

    They add up, for each action of a rank, its duration and the end of the action that it depends on. The largest sum of a rank counts.
    Ends are absolute times, so the sum grows with the square of the number of actions. `Execution.makespan_s` is the correct form: an
    action ends its duration after its last predecessor, the rank's previous action included.
    """
    sums = [0.0] * executed.schedule.shape.ranks
    ends = (*executed.ends_s, 0.0)
    for duration_s, (_, rank, need, _) in zip(executed.durations_s, executed.schedule.sequence, strict=True):
        sums[rank] += duration_s + ends[need]
    return max(sums)
