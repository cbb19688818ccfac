"""Rank the configurations of a job without trials."""

from pathlib import Path

import oppa
from oppa.api.jobs import problem_of
from oppa.problem.problem import Problem


def predict(job: str | Path | Problem) -> "oppa.PredictResult":
    """Rank the configurations of a job by the prior alone, without a trial.

    Args:
        job: A job file, or a problem.

    Raises:
        InputError: the job is wrong.
    """
    from oppa.cost import prediction
    from oppa.cost.beliefs import beliefs_of_job
    from oppa.cost.facts import workload_of
    from oppa.cost.ranking import PredictResult
    from oppa.training.tracing.trace import traced

    problem = traced(problem_of(job))
    candidates = problem.candidates()
    predicted = prediction.predict(workload_of(problem, candidates), *beliefs_of_job(problem))
    ranked = predicted.sort_values(["fits", "predicted_step_time_s"], ascending=[False, True], kind="stable")
    return PredictResult(problem=problem, candidates=candidates, frame=ranked)
