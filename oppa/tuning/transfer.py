"""Transfers the coefficients that a study learned of its device to the next study, as priors."""

import dataclasses
import math
from pathlib import Path

from oppa.cost.coefficients import Belief
from oppa.errors import InputError
from oppa.problem.devices import identify
from oppa.problem.problem import Problem
from oppa.study import Study
from oppa.tuning.designers.oppa import Oppa, fitted
from oppa.tuning.surrogate.gaussian_process import GaussianProcess
from oppa.tuning.surrogate_summary import posterior_beliefs

ELSEWHERE = 0.1
"""Standard deviation of another job's coefficient around this one, in log units, however well this one was learned."""


def beliefs_of(folder: Path, problem: Problem) -> dict[str, Belief]:
    """Return the coefficients that a study learned, for a problem on the same device.

    Raises:
        StudyError: there is no study.
        InputError: it is of another device, has measured nothing, or contradicts the cost model.
    """
    with Study(folder) as study:
        theirs, trials = study.problem, study.trials()
    if _device(theirs) != _device(problem):
        raise InputError(
            f"the study `{folder}` is for `{theirs.cluster.device}`, but the job is for `{problem.cluster.device}`",
            hint="name a study of the same device: coefficients belong to a device",
        )
    if not any(trial.steps_per_s for trial in trials):
        raise InputError(f"the study `{folder}` has measured nothing yet", hint="name a study with completed trials")
    designer = fitted(theirs, theirs.candidates(), trials)
    if designer.averaged_rate.likeliest is not designer.log_rate:
        raise InputError(
            f"the trials of the study `{folder}` contradict the cost model: its coefficients say nothing about another job",
            hint="tune without `designer.transfer`",
        )
    return learned(designer, str(folder))


def _device(problem: Problem) -> str:
    """Return the catalogue's id, so that different names of one device agree; the job's own name if the catalogue lacks the device."""
    cluster = problem.cluster
    return identify(cluster.device, cluster.usable_bytes) or cluster.device


def learned(designer: Oppa, origin: str) -> dict[str, Belief]:
    """Return a fitted designer's coefficients as priors for another job."""
    return {**_of(designer.log_rate, f"learned in `{origin}`"), **_of(designer.log_slack, f"learned in `{origin}`")}


def _of(process: GaussianProcess, source: str) -> dict[str, Belief]:
    return {
        # a measurement never makes a belief wider than its prior
        name: dataclasses.replace(belief, spread=min(math.hypot(belief.spread, ELSEWHERE), process.cost.beliefs[name].spread))
        for name, belief in posterior_beliefs(process, source).items()
    }
