"""Search on a simulated machine that becomes slower, with and without repeats of the incumbent.

`python -m experiments.drift.run` prints for each speed of the drift: the mean and the largest loss of the contenders against the fastest
configuration that the search tried, without noise, and the number of trials.
"""

import argparse
import dataclasses
import math
import statistics
import sys
import tempfile
from pathlib import Path

from oppa import catalog
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.simulator.executor import SimulatedExecutor
from oppa.simulator.simulator import Simulator
from oppa.simulator.trial_simulator import SimulatedTrial, TrialSimulator
from oppa.study import Study
from oppa.tuning.designers import make_designer
from oppa.tuning.result import current
from oppa.tuning.search import TrialExecutor, search
from oppa.tuning.session import SilentCallback
from oppa.tuning.stopping import never

JOB = "runners/simulated/jobs/llama-3.2-1b.toml"
SETTINGS = ("limits.q_max=12", "limits.trials=30")
DRIFTS = (0.0, 0.01, 0.02, 0.03)
"""Share by which each trial's steps take longer than those of the trial before."""


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


def loss_of_search(folder: Path, per_trial: float, seed: int, *, watches: bool, designer: str = "random") -> tuple[float, int]:
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
        made = make_designer(designer, problem, candidates, seed=seed)
        search(executor, candidates, made, never(problem.limits), watches_drift=watches)
        trials = study.trials()
    found = current(trials, candidates, problem.limits.repeats)
    true = {trial.configuration: simulator.steps_per_s(trial.configuration) or 0.0 for trial in trials if trial.feasible}
    contenders = [each.configuration for each in (found.best, found.runner_up) if each] if found else []
    return 1 - max((true[each] for each in contenders), default=0.0) / max(true.values(), default=1.0), len(trials)


def main() -> None:
    """Print a line for each drift, with and without repeats."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--designer", default="random")
    given = parser.parse_args()
    sys.stdout.write(f"{'drift a trial':>13} {'repeats':>8} {'mean loss':>10} {'largest':>8} {'trials':>7}\n")
    for drift in DRIFTS:
        for watches in (False, True):
            with tempfile.TemporaryDirectory() as name:
                found = [
                    loss_of_search(Path(name, str(seed)), drift, seed, watches=watches, designer=given.designer)
                    for seed in range(given.seeds)
                ]
            losses, trials = zip(*found, strict=True)
            how = "yes" if watches else "no"
            row = f"{drift:>13.0%} {how:>8} {statistics.fmean(losses):>10.2%} {max(losses):>8.1%} {statistics.fmean(trials):>7.1f}"
            sys.stdout.write(f"{row}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
