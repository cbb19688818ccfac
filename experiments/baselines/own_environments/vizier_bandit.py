"""Suggest by Google Vizier's GP bandit (Song et al. 2024, arXiv:2408.11527) at its own settings, with failures as infeasible trials.

Its acquisition is maximised over the unit cube. The free candidate nearest to the maximum runs.
"""

import numpy as np
from answering import serve  # type: ignore[import-not-found]  # the script's folder is on the path of the environment's Python
from vizier import algorithms
from vizier import pyvizier as vz
from vizier._src.algorithms.designers.gp_bandit import VizierGPBandit

RATE = "log_throughput"


def suggest(points: list[list[float]], seen: list[tuple[int, float | None]], free: list[int], seed: int) -> int:
    """Return the free candidate that is nearest to Vizier's suggestion."""
    problem = vz.ProblemStatement()
    names = [f"x{column}" for column in range(len(points[0]))]
    for name in names:
        problem.search_space.root.add_float_param(name, 0.0, 1.0)
    problem.metric_information.append(vz.MetricInformation(name=RATE, goal=vz.ObjectiveMetricGoal.MAXIMIZE))
    designer = VizierGPBandit.from_problem(problem, seed=seed)
    trials = [_trial(number, dict(zip(names, points[row], strict=True)), rate) for number, (row, rate) in enumerate(seen, 1)]
    designer.update(algorithms.CompletedTrials(trials), algorithms.ActiveTrials())
    parameters = designer.suggest(1)[0].parameters
    wanted = np.array([parameters.get_value(name) for name in names])
    return free[int(np.square(np.array(points)[free] - wanted).sum(axis=1).argmin())]


def _trial(number: int, parameters: dict[str, float], rate: float | None) -> vz.Trial:
    trial = vz.Trial(id=number, parameters=parameters)
    if rate is None:
        trial.complete(vz.Measurement(), infeasibility_reason="the trial failed")
    else:
        trial.complete(vz.Measurement(metrics={RATE: rate}))
    return trial


if __name__ == "__main__":
    serve(suggest)
