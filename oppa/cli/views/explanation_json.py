"""Print an explanation of a configuration as JSON."""

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oppa.problem.candidates import Candidates
    from oppa.problem.objective import Objective
    from oppa.problem.problem import Problem
    from oppa.problem.selector import Setting
    from oppa.study import Trial
    from oppa.tuning.cost_breakdown import CostBreakdown
    from oppa.tuning.explanation import Explanation


def print_violations(text: str, asked: "Setting", problem: "Problem", candidates: "Candidates") -> None:
    """Print the constraints that a setting violates, and the values that are valid instead."""
    from oppa.cli.views import style
    from oppa.problem.selector import alternatives, violations

    broken = [dataclasses.asdict(each) for each in violations(problem.space, asked)]
    others = {name: list(values) for name, values in alternatives(candidates, asked).items()}
    style.print_json({"setting": text, "valid": False, "violations": broken, "alternatives": others})


def print_explanation(known: "Explanation", costs: "CostBreakdown | None", *, matches: int) -> None:
    """Print all facts about a valid configuration; values are in the unit of the objective."""
    from oppa.cli.views import style
    from oppa.cli.views.breakdown_view import costs_to_dict

    sought = known.objective
    low, high = sorted(map(sought.of, known.prediction.interval))
    memory = known.prediction.memory_interval
    style.print_json(
        {
            "id": known.configuration.id,
            "valid": True,
            "matches": matches,
            "configuration": known.configuration.to_dict(),
            "trials": known.trials,
            "objective": sought.to_dict(),
            "tried": known.tried and _trial(known.tried, sought),
            "value": known.steps_per_s and sought.of(known.steps_per_s),
            "prediction": {
                "value": sought.of(known.prediction.steps_per_s),
                "low": low,
                "high": high,
                "memory_bytes": known.prediction.memory_bytes,
                "memory_low_bytes": memory and memory[0],
                "memory_high_bytes": memory and memory[1],
            },
            "usable_bytes": known.usable_bytes,
            "probability_fits": known.chance_of_fitting,
            "probability_better": known.chance_of_winning,
            "ratio": known.ratio,
            "best": {"id": known.best.id, "value": sought.of(known.best_steps_per_s), "measured": known.best_measured},
            **(costs_to_dict(costs) if costs else {}),
        }
    )


def _trial(tried: "Trial", sought: "Objective") -> dict[str, Any]:
    measured = tried.steps_per_s
    return {
        "id": tried.id,
        "outcome": tried.outcome,
        "cause": tried.cause,
        "rank": tried.rank,
        "value": measured and sought.of(measured),
        "stddev": sought.stddev_of(measured, tried.stddev) if measured and tried.stddev is not None else None,
        "memory_bytes": tried.memory_bytes,
        "predicted_value": tried.prediction and sought.of(tried.prediction.steps_per_s),
        "predicted_memory_bytes": tried.prediction and tried.prediction.memory_bytes,
    }
