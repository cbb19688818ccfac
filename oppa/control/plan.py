"""Compute a static plan from the noise scale of a finished run, for training without a live controller.

The plan takes the noise scale at the sample count of the finished run, and times from the table. A run of the same model on the same
data comes close to both. The plan cannot detect a deviation.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from oppa.control.controller import EVERY
from oppa.control.decision import HEALTHY, Decision, DecisionKind, JobState, Policy
from oppa.control.throughput_index import ThroughputIndex
from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.table.rows import ParallelStrategy, TableRow, same_strategy
from oppa.table.table import Table
from oppa.training.run import ledger
from oppa.training.run.ledger import Line
from oppa.training.run.run_folder import RunSpec
from oppa.training.statistics.noise_scale import Smoothing

RESTART_S = 60.0
"""Seconds of a restart in another layout if none was measured. Assumed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSeen:
    """Holds the noise scale of a run after a number of samples, in sequences."""

    samples: int
    noise_scale: float

    @classmethod
    def of(cls, lines: Iterable[Line]) -> "list[NoiseSeen]":
        """Return the noise scales of a run's steps that could be measured reliably."""
        healthy = (line for line in lines if line["event"] == ledger.STEP and line["health"] == HEALTHY)
        return [cls(samples=line["samples"][1], noise_scale=line["noise_scale"]) for line in healthy if line["noise_scale"] is not None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlanStage:
    """Describes a stage of the plan: a configuration and the sample count at which it starts."""

    samples: int
    configuration: Configuration
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {"samples": self.samples, "configuration": self.configuration.to_dict(), "reason": self.reason}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Holds the stages of a plan, and what a change of layout costs in it."""

    stages: Sequence[PlanStage]
    reconfiguration_s: float
    source: str
    """Origin of these seconds, in words."""


def plan_of_run(
    run: RunSpec,
    lines: Sequence[Line],
    table: Table,
    make: Callable[[ThroughputIndex], Policy],
    *,
    samples: int | None = None,
    reconfiguration_s: float | None = None,
) -> RunPlan:
    """Return the plan for another training of a run's job.

    Args:
        lines: The valid lines of the run's ledger.
        make: Function that makes the policy.
        samples: Samples of the whole training; None: those of the run.
        reconfiguration_s: Seconds of a change of layout; None: the median restart of the run, or a minute if it has none.

    Raises:
        InputError: the run has no reliable noise scale, or the table has no row.
    """
    options = run.problem.run_options
    steps = [line for line in lines if line["event"] == ledger.STEP]
    costs = ((reconfiguration_s, "as stated"), (restart_s(lines), "the median restart of the run"), (RESTART_S, "assumed"))
    cost_s, source = next((seconds, source) for seconds, source in costs if seconds is not None)
    begin = fastest_at(table, run.configuration.global_batch).configuration
    stages = plan(
        make(ThroughputIndex(table).scaled(options.scaling)),
        table,
        NoiseSeen.of(lines),
        begin=begin,
        total=samples or options.samples or (steps[-1]["samples"][1] if steps else 0),
        warmup=options.warmup_samples,
        reconfiguration_s=cost_s,
    )
    return RunPlan(stages=stages, reconfiguration_s=cost_s, source=source)


def plan(
    policy: Policy,
    table: Table,
    seen: Sequence[NoiseSeen],
    *,
    begin: Configuration,
    total: int,
    warmup: int = 0,
    reconfiguration_s: float = 0.0,
) -> list[PlanStage]:
    """Return the stages that a policy would choose along a recorded noise scale.

    Args:
        policy: Policy that decides.
        table: Throughput table.
        seen: Recorded noise scale, ascending by samples.
        begin: First configuration; it must be in the table.
        total: Samples of the whole training.
        warmup: Samples over which the learning rate rises.
        reconfiguration_s: Seconds of a change of layout or of the micro-batch, which takes another launch.

    Raises:
        InputError: if `seen` is empty, or the table has no row for `begin`.
    """
    if not seen:
        raise InputError("the run has no reliable noise scale", hint="train longer, or with more micro-batches per step")
    rates = {row.configuration: row.steps_per_s for row in table.rows}
    if begin not in rates:
        raise InputError(f"the table has no row for `{begin.id}` at batch {begin.global_batch}", hint="begin with a row of the table")
    stages = [PlanStage(samples=0, configuration=begin, reason="the first configuration")]
    elapsed_s = changing_s = 0.0
    at = next_decision = 0
    for point in (each for each in seen if each.samples <= total):
        present = stages[-1].configuration
        elapsed_s += (point.samples - at) / present.global_batch / rates[present]
        at = point.samples
        if at < next_decision:
            continue
        unbiased, of_workers = _variance_ratios(point.noise_scale / Smoothing().calibration, present)
        state = JobState(
            configuration=present,
            noise_scale=point.noise_scale,
            variance_ratio=unbiased,
            worker_variance_ratio=of_workers,
            samples=at,
            elapsed_s=elapsed_s,
            reconfiguring_s=changing_s,
            reconfiguration_s=reconfiguration_s,
            warming_up_samples=max(0, warmup - at),
            remaining_samples=total - at,
            restarting=_relaunched(present, rates),
        )
        decision = _decided(policy, state)
        next_decision = at + (policy.interval or EVERY) * decision.configuration.global_batch
        if decision.command == DecisionKind.NO_OP:
            continue
        if state.pays_for(decision.configuration):
            elapsed_s, changing_s = elapsed_s + reconfiguration_s, changing_s + reconfiguration_s
        stages.append(PlanStage(samples=at, configuration=decision.configuration, reason=decision.reason))
    return stages


def _relaunched(present: Configuration, candidates: Iterable[Configuration]) -> frozenset[Configuration]:
    """Return the candidates in the present layout that take another launch, because they have another micro-batch."""
    others = (each for each in candidates if each.micro_batch != present.micro_batch)
    return frozenset(each for each in others if same_strategy(each, present))


def _decided(policy: Policy, state: JobState) -> Decision:
    """Return a policy's decision. If no launch pays off, a slower micro-batch may still be worth a change within the present one."""
    decision = policy.decide(state)
    if decision.command != DecisionKind.NO_OP or not state.restarting:
        return decision
    return policy.decide(dataclasses.replace(state, unbuildable=state.restarting, restarting=frozenset()))


def _variance_ratios(noise_scale: float, present: Configuration) -> tuple[float, float]:
    """Return the expected V / |g|^2 of the norm test in its unbiased form and by eq. 5.

    Args:
        noise_scale: tr(Sigma) / |G|^2, in sequences.
        present: Configuration of the step.
    """
    ratio = noise_scale / (1 + noise_scale / present.global_batch)
    groups = present.dp if present.dp > 1 else present.num_microbatches
    return ratio, ratio * (groups - 1) / present.global_batch


def restart_s(lines: Iterable[Line]) -> float | None:
    """Return the median time of a run's restarts in another layout, in seconds; None if its ledger has none."""
    seconds = [line["seconds"] for line in lines if line["event"] == ledger.CHANGED]
    restarts = [math.fsum(each.values()) for each in seconds if "start" in each]
    return statistics.median(restarts) if restarts else None


def fastest_at(table: Table, global_batch: int) -> TableRow:
    """Return the fastest row at the table's batch closest to `global_batch`; raise InputError for an empty table."""
    if not table.rows:
        raise InputError("the table has no row", hint="continue with `oppa profile`")
    closest = min(table.batches, key=lambda batch: (abs(batch - global_batch), batch))
    return max((row for row in table.rows if row.configuration.global_batch == closest), key=lambda row: row.steps_per_s)


def launches(stages: Iterable[PlanStage]) -> list[list[PlanStage]]:
    """Group consecutive stages into launches of a framework: within one, only the global batch changes."""
    groups = itertools.groupby(stages, key=lambda stage: (ParallelStrategy.of(stage.configuration), stage.configuration.micro_batch))
    return [list(group) for _, group in groups]
