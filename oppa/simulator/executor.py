"""Run a simulated trial in process: its result has the form of a real one's, and its time passes on a simulated clock."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

from oppa.problem.training import Limits
from oppa.simulator.trial_simulator import SimulatedTrial, TrialSimulator
from oppa.trials.monitor import StopRule, writable
from oppa.trials.throughput import estimate, settled
from oppa.trials.trial import TrialResult, enough_steps
from oppa.trials.trial_folder import MEASUREMENTS, Measurement, TrialSpec
from oppa.units import format_seconds


def run_simulated(simulated_trial: SimulatedTrial, stop_rule: StopRule | None = None, *, settle: int = 0) -> TrialResult:
    """Return the result of a trial, which stops after the first step at which `stop_rule` returns an outcome.

    Without a rule it runs all its steps. The rule gets the times of all steps so far, from the second step on. The first `settle` steps
    are not measured.
    """
    times = simulated_trial.step_times_s
    if simulated_trial.outcome != "completed" or len(times) < 2:
        return TrialResult(outcome=simulated_trial.outcome, cause=simulated_trial.cause, seconds=simulated_trial.setup_s)
    looks = ((q, stop_rule(times[:q], simulated_trial.setup_s)) for q in range(2, len(times))) if stop_rule else ()
    stop, outcome = next(((q, found) for q, found in looks if found), (len(times), "completed"))
    return TrialResult(
        outcome=outcome,
        step_times_s=times[:stop],
        estimate=estimate(settled(times[:stop], settle)),
        memory_bytes=simulated_trial.memory_bytes,
        seconds=simulated_trial.setup_s + sum(times[:stop]),
        setup_s=simulated_trial.setup_s,
    )


class SimulatedExecutor:
    """Runs a study's trials in process, on a simulated clock.

    Each trial's folder has the files of a real one.
    """

    def __init__(self, simulator: TrialSimulator, *, seed: int) -> None:
        self._simulator, self._seed = simulator, seed

    def __call__(
        self,
        folder: Path,
        spec: TrialSpec,
        *,
        limits: Limits,
        stop_rule: StopRule | None = None,
        on_step: Callable[[Measurement], None] = lambda _: None,
        on_tick: Callable[[], None] = lambda: None,
    ) -> TrialResult:
        """Return the result of the trial that `spec` describes, and write its folder.

        Raises:
            StudyError: `folder` cannot be written. Errors of `on_tick` and `on_step` are passed on.
        """
        on_tick()
        simulated_trial = self._simulator.simulate_trial(spec.configuration, steps=spec.steps, seed=self._seed + spec.trial)
        result = within(run_simulated(simulated_trial, stop_rule, settle=limits.settle), limits)
        measured = [
            Measurement(step=step, step_time_s=time_s, memory_bytes=result.memory_bytes) for step, time_s in enumerate(result.step_times_s)
        ]
        with writable(folder):
            spec.write(folder)
            lines = [json.dumps(dataclasses.asdict(measurement)) for measurement in measured]
            (folder / MEASUREMENTS).write_text("".join(f"{line}\n" for line in lines))
        for measurement in measured:
            on_step(measurement)
        return result


def within(result: TrialResult, limits: Limits) -> TrialResult:
    """Return the result of a trial that is ended at its time limit: `timed_out`, unless it has taken enough steps by then."""
    limit_s, settle = limits.trial_time_s, limits.settle
    if result.seconds <= limit_s:
        return result
    kept, clock_s = 0, result.setup_s or 0.0
    for time_s in result.step_times_s:
        clock_s += time_s
        if clock_s > limit_s:
            break
        kept += 1
    times = result.step_times_s[:kept]
    is_measured = kept >= enough_steps(limits)
    return dataclasses.replace(
        result,
        outcome="completed" if is_measured else "timed_out",
        cause="" if is_measured else f"took longer than its limit of {format_seconds(limit_s)}",
        step_times_s=times,
        estimate=estimate(settled(times, settle)) if len(times) > settle + 2 else None,
        seconds=limit_s,
    )
