"""Divide the predicted step time and memory of a configuration by cause, and compare them with what was measured."""

import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from oppa.cost.beliefs import MEMORY_RESIDUAL, TIME_RESIDUAL, Beliefs, beliefs_of_job, files_of_job, framework_file, framework_of
from oppa.cost.breakdown import PEAKS, SIZES, TIMES, sizes, times
from oppa.cost.coefficients import Coefficients
from oppa.cost.correction import Correction, correction
from oppa.cost.facts import workload_of
from oppa.cost.framework import FrameworkPrior
from oppa.cost.memory import memory
from oppa.cost.memory_limits import MemoryLimits
from oppa.cost.step_time import step_time
from oppa.cost.workload import Formula, Workload
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.tuning.designers.oppa import Oppa
from oppa.tuning.designers.without_prior import WithoutPrior
from oppa.tuning.explanation import Explanation
from oppa.tuning.surrogate.gaussian_process import GaussianProcess


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTotal:
    """Holds a measured value; a trial that ran out of memory measures that at least the limit is needed."""

    value: float
    at_least: bool = False

    def agrees(self, predicted: float, *, within: float) -> bool:
        """Return whether a prediction is as near to the value as an error of its logarithm allows."""
        error = math.log(predicted / self.value)
        return error >= -within if self.at_least else abs(error) <= within


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PredictedParts:
    """Holds the parts of a predicted quantity, and what was measured of the whole."""

    parts: Mapping[str, float]
    """Seconds or bytes by the names in TIMES or SIZES."""
    words: Mapping[str, str]
    """The names of the parts, in words."""
    counted: float
    """Sum of the parts over what programs report: the parts of some frameworks count memory that programs do not report."""
    prediction: float
    """The designer's prediction of what programs report: by the parts, and by what it learned from trials in addition."""
    measured: MeasuredTotal | None
    correction: Correction | None
    """Change of a coefficient that explains the measurement; None if prediction and measurement agree, or no change does."""
    agree: bool
    """True if they agree within the error of the formula that no coefficient explains, or if nothing was measured."""

    @property
    def whole(self) -> float:
        """Return the sum of the parts."""
        return sum(self.parts.values())

    @property
    def reported(self) -> float:
        """Return what programs report of the sum, by the parts alone."""
        return self.whole / self.counted


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CostBreakdown:
    """Divides the cost of one configuration, by the cost model with its present coefficients."""

    framework: FrameworkPrior
    framework_file: str
    precision: str
    """Number format of the job's passes."""
    time: PredictedParts
    memory: PredictedParts
    peak: str
    """Stage and phase of the step that need the most memory, in words."""


def break_down(
    designer: Oppa | WithoutPrior, problem: Problem, candidates: Candidates, candidate: int, known: Explanation
) -> CostBreakdown | None:
    """Return the breakdown of a candidate's cost, by the coefficients that a designer learned, or the prior's before any trial.

    The result is None if the cost model does not predict the objective.
    """
    if not isinstance(designer, Oppa):
        return None
    work = workload_of(problem, candidates).take(torch.tensor([candidate]))
    files, (time, size) = files_of_job(problem), beliefs_of_job(problem)
    rate, slack = _present(designer.log_rate), _present(designer.log_slack)
    needed, peak = sizes(work, slack)
    limits, predicted = designer.limits, known.prediction
    counted = limits.predicted / limits.reported
    time_quantity = _Quantity(
        formula=step_time,
        beliefs=time,
        words=TIMES,
        residual=TIME_RESIDUAL,
        prediction=1 / predicted.steps_per_s,
        measured=MeasuredTotal(value=1 / known.steps_per_s) if known.steps_per_s else None,
    )
    memory_quantity = _Quantity(
        formula=memory,
        beliefs=size,
        words=SIZES,
        residual=MEMORY_RESIDUAL,
        prediction=predicted.memory_bytes or sum(map(float, needed.values())) / counted,
        measured=_needed(known, limits),
        counted=counted,
    )
    return CostBreakdown(
        framework=framework_of(problem),
        framework_file=framework_file(problem),
        precision=problem.training.precision,
        time=_compared(time_quantity, times(work, rate), work, rate, files),
        memory=_compared(memory_quantity, needed, work, slack, files),
        peak=PEAKS[int(peak)],
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Quantity:
    formula: Formula
    beliefs: Beliefs
    words: Mapping[str, str]
    residual: float
    prediction: float
    measured: MeasuredTotal | None
    counted: float = 1.0


def _compared(
    quantity: _Quantity, parts: Mapping[str, Tensor], work: Workload, present: Coefficients, files: Mapping[str, str]
) -> PredictedParts:
    values, measured, counted = {name: float(part) for name, part in parts.items()}, quantity.measured, quantity.counted
    agree = measured is None or measured.agrees(sum(values.values()) / counted, within=quantity.residual)
    wrong = None if measured is None or agree else measured.value * counted
    return PredictedParts(
        parts=values,
        words=quantity.words,
        counted=counted,
        prediction=quantity.prediction,
        measured=measured,
        correction=None if wrong is None else correction(quantity.formula, work, quantity.beliefs, present, wrong, files=files),
        agree=agree,
    )


def _present(process: GaussianProcess) -> Coefficients:
    """Return the coefficients that a process has learned."""
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in process.cost.coefficients(process.shift).items()}


def _needed(known: Explanation, limits: MemoryLimits) -> MeasuredTotal | None:
    """Return the measured memory; the limit, as the least, if the trial ran out of it."""
    tried = known.tried
    if tried is not None and tried.outcome == "out_of_memory":
        return MeasuredTotal(value=limits.reported, at_least=True)
    if tried is None or tried.steps_per_s is None or not tried.memory_bytes:
        return None
    return MeasuredTotal(value=tried.memory_bytes)
