"""Search on a simulated machine that becomes slower from trial to trial."""

import dataclasses
import math
from pathlib import Path

from oppa import catalog
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.simulator.executor import SimulatedExecutor
from oppa.simulator.simulator import Simulator
from oppa.simulator.trial_simulator import SimulatedTrial, TrialSimulator
from oppa.study import Study
from oppa.tuning.comparison import compare_contenders
from oppa.tuning.designers import make_designer
from oppa.tuning.search import search
from oppa.tuning.session import SilentCallback
from oppa.tuning.stopping import never
from oppa.tuning.trial_executor import TrialExecutor

JOB = "runners/simulated/jobs/llama-3.2-1b.toml"
TRIALS = 30
SETTINGS = ("limits.q_max=12", f"limits.trials={TRIALS}")


@dataclasses.dataclass(slots=True)
class SlowingSimulator:
    """Simulates trials on a machine that becomes slower from trial to trial."""

    simulator: TrialSimulator
    per_trial: float
    trials: int = 0

    def simulate_trial(self, configuration: Configuration, *, steps: int, seed: int) -> SimulatedTrial:
        """Return the trial with slower steps."""
        found, factor = self.simulator.simulate_trial(configuration, steps=steps, seed=seed), math.exp(self.per_trial * self.trials)
        self.trials += 1
        return dataclasses.replace(found, step_times_s=tuple(factor * each for each in found.step_times_s))

    def steps_per_s(self, configuration: Configuration) -> float | None:
        """Return the throughput of the machine at its start."""
        return self.simulator.steps_per_s(configuration)


def loss_of_search(folder: Path, per_trial: float, seed: int, *, watches: bool) -> tuple[float, int]:
    """Return by what share the contenders of a search are slower than the fastest that it tried, and the number of its trials.

    Args:
        per_trial: Logarithm of the factor between the step times of two trials of one configuration in a row.
        watches: Repeat the incumbent now and then.
    """
    problem = load_job(catalog.root() / JOB, settings=SETTINGS)
    candidates, simulator = problem.candidates(), SlowingSimulator(Simulator.of(problem), per_trial)
    with Study.create(folder, problem.to_dict(), problem.fingerprint) as study:
        study.open_session({})
        executor = TrialExecutor(study, problem, SimulatedExecutor(simulator, seed=seed), SilentCallback(), simulated=True)
        made = make_designer("random", problem, candidates, seed=seed)
        search(executor, candidates, made, never(problem.limits), watches_drift=watches)
        trials = study.trials()
    found = compare_contenders(trials, candidates, problem.limits.repeats)
    true = {trial.configuration: simulator.steps_per_s(trial.configuration) or 0.0 for trial in trials if trial.feasible}
    contenders = [each.configuration for each in (found.best, found.runner_up) if each] if found else []
    return 1 - max((true[each] for each in contenders), default=0.0) / max(true.values(), default=1.0), len(trials)
