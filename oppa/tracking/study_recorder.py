"""Pass a study on to a tracker: a run for the study, which ends with the winner, and a nested one for each trial."""

from pathlib import Path

from oppa.problem.configuration import Configuration
from oppa.study import Study, Trial
from oppa.study.records import SEARCH
from oppa.tracking.progress import Progress
from oppa.tracking.tracker import Status, TrackedRun, Tracker, Value, without_secrets
from oppa.trials.trial_folder import Outcome
from oppa.tuning.comparison import WinnerComparison, compare_contenders
from oppa.tuning.proxy.nested import FOLDER
from oppa.tuning.spending import spending

TRIALS = "trials"
"""Key of the progress: the numbers of the trials that the tracker has."""
_STATUS: dict[Outcome, Status] = {"completed": "finished", "terminated_early": "finished", "interrupted": "interrupted"}
"""Status of a trial by its outcome; all others are failures."""


class StudyRecorder:
    """Follows a study, whose tuners may be any processes."""

    def __init__(self, study: Study, tracker: Tracker, progress: Progress) -> None:
        """Open the study's run."""
        self._study, self._problem, self._tracker, self._progress = study, study.problem, tracker, progress
        self._known = set(progress.values.get(TRIALS, ()))
        problem, facts = self._problem, (study.sessions() or [{}])[-1]
        own: dict[str, Value] = {"global_batch": problem.global_batch, "devices": problem.cluster.devices, "device": problem.cluster.device}
        self._run = TrackedRun(id=study.uuid, name=_name(study.folder.resolve()), parameters={"job": problem.name, **own, **facts})
        tracker.open(self._run)

    def update(self) -> None:
        """Record the trials that have ended since the last call."""
        trials = self._study.trials()
        for trial in trials:
            if trial.id not in self._known:
                self._known.add(trial.id)
                self._record(trial, [each for each in trials if each.id in self._known])
                self._progress.store(**{TRIALS: sorted(self._known)})

    def finish(self, status: Status) -> None:
        """End the study's run, with the winner so far."""
        trials, problem = self._study.trials(), self._problem
        found = compare_contenders(trials, problem.candidates(), problem.limits.repeats, problem.baseline) if trials else None
        if found is not None:
            values = {**self._winner(found), "gpu_hours": spending(self._study, problem).gpu_hours}
            self._tracker.log(self._run, values, len(trials))
            if (best := self._study.folder / "best" / "configuration.json").is_file():
                self._tracker.artifact(self._run, best)
        self._tracker.finish(self._run, status)

    def _record(self, trial: Trial, recorded: list[Trial]) -> None:
        """Record a trial as a run of its own, and the course of the search in the study's run.

        The step of the course is the number of recorded trials: tuners of several hosts may end their trials in another order than ids.
        """
        run = self._trial_run(trial)
        self._tracker.open(run)
        for step, step_time_s in enumerate(trial.step_times_s, 1):
            self._tracker.log(run, {"step_time_s": step_time_s}, step)
        self._tracker.log(run, without_secrets(self._values(trial)), len(trial.step_times_s))
        self._tracker.finish(run, _STATUS.get(trial.outcome, "failed"))
        rates = [each.steps_per_s for each in recorded if each.feasible and each.steps_per_s and each.purpose == SEARCH]
        best = {"best_objective": self._problem.objective.of(max(rates))} if rates else {}
        self._tracker.log(self._run, {"trials": len(recorded), **best}, len(recorded))

    def _trial_run(self, trial: Trial) -> TrackedRun:
        hosts = {"hosts": ", ".join(trial.hosts)} if trial.hosts else {}
        return TrackedRun(
            id=f"{self._run.id}-{trial.id}",
            name=trial.folder_name,
            parent=self._run.id,
            parameters={**_values_of(trial.configuration), "purpose": trial.purpose, **hosts},
        )

    def _values(self, trial: Trial) -> dict[str, Value]:
        """Return the outcome of a trial; a rate is a throughput unless the program prints its own objective."""
        sought, rate = self._problem.objective, trial.steps_per_s
        found: dict[str, Value | None] = {
            "outcome": trial.outcome,
            "cause": trial.cause or None,
            "objective": sought.of(rate) if rate else None,
            "objective_unit": sought.unit or None,
            "steps_per_s": rate if sought.is_throughput else None,
            "samples_per_s": rate * trial.configuration.global_batch if rate and sought.is_throughput else None,
            "memory_bytes": trial.memory_bytes,
            "seconds": trial.seconds,
            "setup_s": trial.setup_s,
        }
        return {name: value for name, value in found.items() if value is not None}

    def _winner(self, found: WinnerComparison) -> dict[str, Value]:
        best, gained = found.contender(found.best), found.speed_up
        rate = best.steps_per_s or best.steps_per_s_search
        objective = {"winner_objective": self._problem.objective.of(rate)} if rate else {}
        ratio = {f"speed_up{suffix}": getattr(gained.ratio, name) for suffix, name in _INTERVAL.items()} if gained else {}
        known = found.reference
        reference = {"reference": found.reference_kind, "reference_configuration": known.configuration.id} if known else {}
        return {"winner": best.configuration.id, **objective, **ratio, **reference}


_INTERVAL = {"": "value", "_low": "low", "_high": "high"}


def _name(folder: Path) -> str:
    """Return the name of a study; that of a smaller size names the study in whose folder it lies."""
    return f"{folder.parent.name}-{FOLDER}" if folder.name == FOLDER else folder.name


def _values_of(configuration: Configuration) -> dict[str, Value]:
    return {name: value for name, value in configuration.to_dict().items() if isinstance(value, Value)}
