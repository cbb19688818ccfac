"""Run one attempt at a training run on its ranks: from the newest checkpoint until all samples are seen or a stop is requested."""

import contextlib
import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from oppa.errors import CheckpointError, InputError, TrainingError, reason
from oppa.pipeline.profile import PipelineProfile
from oppa.pipeline.torch_csv import parse_schedule
from oppa.problem.configuration import Configuration
from oppa.protocol.messages import ChangeFacts, StepFacts
from oppa.training.checkpoint.manifest import Manifest
from oppa.training.reshard.reconfiguration import LayoutChange, Phase
from oppa.training.run import ledger
from oppa.training.run.ledger import PROFILED, SAVED, Ledger, note
from oppa.training.run.run_controller import ControllerDecision, RunController
from oppa.training.run.run_folder import CHECKPOINTS, RunSpec, checkpoint_of, checkpoints, remove_drafts, set_aside, steps_of
from oppa.training.run.schedule_search_process import ORDER, PROFILE
from oppa.training.run.searched_schedule import SearchedRunSchedule
from oppa.training.run.step import Directive, TrainingStep
from oppa.training.run.training_run import TrainingRun, open_run
from oppa.training.statistics.noise_scale import Health
from oppa.training.statistics.norm_test import variance_ratio
from oppa.trials.trial_folder import TrialSpec, write_json

LOOKS = 20
"""Validations over a whole run, if `validate_every` does not set their interval."""
PATIENCE = 10
"""Consecutive steps with non-finite gradients after which training ends; such a run does not recover by itself."""

_RECORDED = ("loss", "learning_rate", "step_time_s", "elapsed_s", "health", "variance_ratio", "worker_variance_ratio")
"""Facts of a step that the ledger stores as they are."""

_log = logging.getLogger(__name__)


class Attempt:
    """Runs an attempt on one rank. Rank 0 also writes the ledger and issues the directives that all ranks follow after a step.

    Args:
        folder: Folder of the run.
        stop_requested: Returns whether to end at the next step boundary; called on rank 0 only.
        on_step: Called on rank 0 after each step.
        on_phase: Called on each rank as each phase of a change of layout begins.
        controller: Requests changes of the run; used on rank 0 only.
    """

    def __init__(
        self,
        folder: Path,
        *,
        stop_requested: Callable[[], bool],
        on_step: Callable[[TrainingStep], None],
        on_phase: Callable[[Phase], None] = lambda _: None,
        controller: RunController | None = None,
    ) -> None:
        self.folder, self.spec = folder, RunSpec.read(folder)
        self._stop_requested, self._on_step, self._on_phase = stop_requested, on_step, on_phase
        self._controller = controller
        self._ledger: Ledger | None = None
        self._saved_s = time.monotonic()
        self._kept: int | None = None
        """Steps of the state that this attempt has resumed, or saved last."""
        self._not_finite = 0
        self._accuracy: float | None = None
        """Accuracy on held-out samples at the last validation."""
        self._refused: tuple[Configuration, tuple[int, ...]] | None = None
        self._schedule = SearchedRunSchedule(folder)
        self._decision: ControllerDecision | None = None
        """The present decision; set on rank 0 only."""

    def make(self, trial: TrialSpec, *, rank: int, world: int, rendezvous: str) -> None:
        """Train from the newest checkpoint until all samples are seen or a stop is requested, and save the state.

        Raises:
            TrainingError: if gradients are not finite for `PATIENCE` consecutive steps.
            CheckpointError: if checkpoints exist but none is usable, or the state cannot be saved at the end.
            OSError: if the ledger cannot be written at the end, or for too many steps.
        """
        with self._gone_on(trial, rank=rank, world=world, rendezvous=rendezvous) as run:
            stopped = False
            while not (run.done or stopped):
                step = run.step(self._wishes(run) if rank == 0 else None)
                if rank == 0:
                    self._note(step, run)
                if step.profile is not None and rank == 0:
                    self._profiled(step.profile, run)
                self._require_finite(step)
                self._validate(step, run)
                if step.directive is not None:
                    self._follow(step.directive, run)
                    stopped = step.directive.stop
            self._save(run, must=True)
            note(self._ledger, ledger.ENDED, run, finished=run.done)

    @contextlib.contextmanager
    def _gone_on(self, trial: TrialSpec, *, rank: int, world: int, rendezvous: str) -> Iterator[TrainingRun]:
        """Open the run at its newest usable checkpoint, or at its beginning if there is no checkpoint.

        The layout is the saved one, unless the number of devices has changed.

        Raises:
            CheckpointError: that of the newest checkpoint, if none is usable; whether to start again is the user's decision.
        """
        unusable = dict[Path, CheckpointError]()
        with open_run(trial, self.spec.problem.run_options, rank=rank, world=world, rendezvous=rendezvous, on_phase=self._on_phase) as run:
            saved = self._checkpoints(run)
            for folder in saved:
                try:
                    run.resume(folder, trial.configuration, keep_layout=True)
                except CheckpointError as error:
                    _log.warning("rank %d: %s", rank, error.message)
                    unusable[folder] = error
                    continue
                self._kept = run.steps
                break
            if unusable and len(unusable) == len(saved):
                raise unusable[saved[0]]
            if rank == 0:
                self._begin(run, saved[len(unusable)] if saved else None, unusable)
            try:
                self._schedule.take_up(run, self._ledger)
                yield run
            finally:
                if self._ledger is not None:
                    self._ledger.close()
                self._schedule.end_search()

    def _checkpoints(self, run: TrainingRun) -> list[Path]:
        """Return the checkpoints that rank 0 lists. Other ranks follow, because a network file system may show them an older list."""
        names = [folder.name for folder in checkpoints(self.folder)] if run.mesh.rank == 0 else []
        return [self.folder / CHECKPOINTS / name for name in json.loads(run.broadcast(json.dumps(names)))]

    def _begin(self, run: TrainingRun, checkpoint: Path | None, unusable: Mapping[Path, CheckpointError]) -> None:
        """Open the ledger, and leave only checkpoints in the folder that the run can resume."""
        self._ledger = Ledger(self.folder)
        note(self._ledger, ledger.STARTED, run, checkpoint=checkpoint and checkpoint.name, configuration=run.configuration.to_dict())
        remove_drafts(self.folder)
        for folder, error in unusable.items():
            note(self._ledger, ledger.UNUSABLE, run, place=str(set_aside(folder)), failure=error.message)

    def _wishes(self, run: TrainingRun) -> Directive | None:
        """Return rank 0's directive for the end of the step that begins now; None if there is nothing to do."""
        decision = self._controller.wanted(run.configuration) if self._controller else self._planned(run)
        wanted = (decision.configuration, decision.local_batches) if decision else None
        present = run.configuration, run.local_batches
        change, local_batches = wanted if wanted and wanted not in (present, self._refused) else (None, ())
        self._decision = decision
        back_to = self._back_to(run, decision.before_step) if decision and decision.before_step is not None else ""
        save = time.monotonic() - self._saved_s >= self.spec.problem.run_options.checkpoint_s
        stop = self._stop_requested()
        passes = self._schedule.found(run, self._ledger)
        if not (change or back_to or save or passes or stop):
            return None
        return Directive(configuration=change, local_batches=local_batches, back_to=back_to, save=save, passes=passes, stop=stop)

    def _profiled(self, profile: PipelineProfile, run: TrainingRun) -> None:
        """Store the profile of the run's first steps, and search for a schedule if the configuration requires it and the disk has space."""
        try:
            write_json(self.folder / PROFILE, profile.to_dict())
            note(self._ledger, PROFILED, run, step_s=profile.step_s)
            self._schedule.search(run.configuration)
        except OSError as error:
            _log.warning("the profile was not stored, and no schedule is searched: %s", reason(error))

    def _planned(self, run: TrainingRun) -> ControllerDecision:
        return ControllerDecision(configuration=self.spec.planned(run.samples + run.configuration.global_batch))

    def _back_to(self, run: TrainingRun, step: int) -> str:
        """Return the name of the newest readable checkpoint from before a step; empty, with a warning, if there is none."""
        for checkpoint in (each for each in checkpoints(self.folder) if steps_of(each) <= step):
            try:
                Manifest.read(checkpoint)
                return checkpoint.name
            except CheckpointError as error:
                _log.warning("%s", error.message)
        failure = f"no readable checkpoint from before step {step} is kept"
        note(self._ledger, ledger.NOT_ROLLED_BACK, run, failure=failure)
        _log.warning("the weights were not restored: %s", failure)
        return ""

    def _note(self, step: TrainingStep, run: TrainingRun) -> None:
        """Write the step to the ledger, and report it to the controller and `on_step`."""
        known, facts = step.noise_scale, self._facts(step, run)
        note(
            self._ledger,
            ledger.STEP,
            run,
            step=facts.step,
            samples=[step.samples.start, step.samples.stop],
            shares=step.shares,
            configuration=facts.configuration.id,
            global_batch=facts.configuration.global_batch,
            micro_batch=facts.configuration.micro_batch,
            **{name: getattr(facts, name) for name in _RECORDED},
            signal=_number(known.signal),
            noise=_number(known.noise),
            noise_scale=_number(known.tokens_per_batch / run.spec.model.seq_len),
            updated=step.updated,
            **({"local_batches": facts.local_batches} if facts.local_batches else {}),
            **({"workers": [each.to_dict() for each in facts.workers]} if facts.workers else {}),
        )
        if self._controller is not None:
            self._controller.step(facts)
        self._on_step(step)

    def _facts(self, step: TrainingStep, run: TrainingRun) -> StepFacts:
        """Return the facts of a step without validating them, because training continues whatever its numbers are."""
        known, workers = step.noise_scale, run.run_options.statistics == "workers"
        return StepFacts.model_construct(
            step=step.number,
            samples=step.samples.stop,
            configuration=step.configuration,
            local_batches=list(step.local_batches),
            step_time_s=step.step_time_s,
            elapsed_s=run.elapsed_s,
            noise_scale=known.tokens_per_batch / run.spec.model.seq_len if known.health is Health.HEALTHY else None,
            health=known.health.name.lower(),
            variance_ratio=variance_ratio(step.norms, sample_tokens=run.spec.model.seq_len),
            worker_variance_ratio=variance_ratio(step.norms, "paper") if workers else None,
            loss=_number(step.loss),
            learning_rate=step.learning_rate,
            accuracy=self._accuracy,
            workers=list(step.workers),
        )

    def _validate(self, step: TrainingStep, run: TrainingRun) -> None:
        """Evaluate the held-out samples if this is due after a step, and write the result to the ledger."""
        run_options = self.spec.problem.run_options
        if not run_options.validation:
            return
        every = run_options.validate_every or (-(-run.total // LOOKS) if run.total else 0)
        if not run.done and not (every and step.samples.start // every < step.samples.stop // every):
            return
        begin_s, found = time.monotonic(), run.validate()
        self._accuracy = found.accuracy
        note(
            self._ledger,
            ledger.VALIDATED,
            run,
            step=step.number,
            elapsed_s=run.elapsed_s,
            loss=_number(found.loss),
            accuracy=found.accuracy,
            seconds=time.monotonic() - begin_s,
        )

    def _require_finite(self, step: TrainingStep) -> None:
        self._not_finite = 0 if step.updated else self._not_finite + 1
        if self._not_finite >= PATIENCE:
            message = f"gradients were not finite for {PATIENCE} steps in a row, the last of them step {step.number}; no weight was changed"
            raise TrainingError(message, hint="lower the learning rate, or check the data of these steps")

    def _follow(self, directive: Directive, run: TrainingRun) -> None:
        if directive.passes:  # before a change, which may be refused
            run.set_schedule(parse_schedule(directive.passes, ORDER))
        if directive.back_to:
            shares = directive.local_batches if directive.configuration else run.local_batches
            self._roll_back(self.folder / CHECKPOINTS / directive.back_to, directive.configuration or run.configuration, shares, run)
        elif directive.configuration is not None:
            self._change(directive.configuration, directive.local_batches, run)
        if directive.save or directive.back_to:  # a later attempt must not resume from the abandoned weights
            self._save(run)

    def _roll_back(self, checkpoint: Path, configuration: Configuration, local_batches: tuple[int, ...], run: TrainingRun) -> None:
        """Continue with the weights of an earlier checkpoint, and write this to the ledger."""
        before, begin_s = run.configuration, time.monotonic()
        run.roll_back(checkpoint, configuration, local_batches)
        seconds = time.monotonic() - begin_s
        if self._controller is not None and run.mesh.rank == 0:
            self._controller.changed(ChangeFacts.model_construct(before=before, after=configuration, seconds=seconds))
        facts = {"before": before.to_dict(), "after": configuration.to_dict(), "seconds": {"restore": seconds}, **self._reasons()}
        note(self._ledger, ledger.ROLLED_BACK, run, checkpoint=checkpoint.name, **facts)
        if configuration != before:
            self._schedule.end_search()
        self._schedule.take_up(run, self._ledger)

    def _change(self, configuration: Configuration, local_batches: tuple[int, ...], run: TrainingRun) -> None:
        """Change the configuration, and write the outcome to the ledger. A configuration that cannot run is not requested again."""
        try:
            change = run.change(configuration, local_batches)
        except InputError as error:
            change = LayoutChange(before=run.configuration, after=run.configuration, seconds={}, failure=f"{error.message}: {error.hint}")
        self._refused = (configuration, local_batches) if change.failure else self._refused
        if self._controller is not None and run.mesh.rank == 0:
            self._controller.changed(
                ChangeFacts.model_construct(
                    before=change.before,
                    after=configuration,
                    local_batches=list(local_batches),
                    seconds=math.fsum(change.seconds.values()),
                    failure=change.failure[:2000],
                )
            )
        note(
            self._ledger,
            ledger.change_event(change.seconds, change.failure),
            run,
            before=change.before.to_dict(),
            after=(configuration if change.failure else change.after).to_dict(),
            **({"local_batches": local_batches} if local_batches else {}),
            seconds=change.seconds,
            received_bytes=change.received_bytes,
            failure=change.failure,
            **self._reasons(),
        )
        if change.seconds:  # empty if nothing has changed
            self._schedule.end_search()
            self._schedule.take_up(run, self._ledger)

    def _reasons(self) -> dict[str, Any]:
        """Return the reason of the decision and its weighed values, as fields of the ledger."""
        decision = self._decision
        return {"reason": decision.reason if decision else "", "weighed": dict(decision.weighed) if decision else {}}

    def _save(self, run: TrainingRun, *, must: bool = False) -> None:
        """Save a checkpoint, and remove the oldest ones. A failure is raised if `must`; else it is noted, and a later save retries."""
        folder, begin_s = checkpoint_of(self.folder, run.steps), time.monotonic()
        self._saved_s = begin_s
        if run.steps == self._kept:  # no step since the last save
            if must and self._ledger is not None:
                self._ledger.sync()
            return
        try:
            run.save(folder)
        except (CheckpointError, OSError) as error:
            if must:
                raise
            why = error.message if isinstance(error, CheckpointError) else reason(error)
            _log.warning("the checkpoint was not saved: %s", why)
            note(self._ledger, ledger.UNSAVED, run, failure=why)
            return
        self._kept = run.steps  # on all ranks alike, also if rank 0 cannot write the ledger: all of them save again, or none
        if self._ledger is not None:
            self._record_saved(self._ledger, folder, run, time.monotonic() - begin_s, must=must)

    def _record_saved(self, written: Ledger, checkpoint: Path, run: TrainingRun, seconds: float, *, must: bool) -> None:
        """Write a new checkpoint to the ledger, and remove the oldest ones. A failure is raised if `must`; else a later save retries."""
        try:
            note(written, SAVED, run, checkpoint=checkpoint.name, seconds=seconds)
            written.sync()
        except OSError as error:
            if must:
                raise
            _log.warning("the ledger was not written: %s", reason(error))
            return
        for old in checkpoints(self.folder)[self.spec.problem.run_options.keep :]:
            shutil.rmtree(old, ignore_errors=True)


def _number(value: float) -> float | None:
    """Return the value, or None if it is not finite, because JSON has no such numbers."""
    return value if math.isfinite(value) else None
