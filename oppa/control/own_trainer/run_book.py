"""Write down what a user's own trainer does: its steps, changes and checkpoints, in the run's ledger and to the controller.

The lines are those of the built-in trainer, so that reports, plans and the live page read both.
"""

import contextlib
import math
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oppa.control.own_trainer.bounds import ChangeLimits
from oppa.control.own_trainer.checkpoint_record import CheckpointRecord
from oppa.control.own_trainer.contract import NoiseReport, SavedState
from oppa.control.own_trainer.reports import KEPT, CheckedStep
from oppa.errors import EnvironmentLackingError
from oppa.problem.configuration import Configuration
from oppa.protocol.messages import ChangeFacts, StepFacts
from oppa.training.run import ledger
from oppa.training.run.ledger import Ledger, Line
from oppa.training.run.run_controller import ControllerDecision, RunController
from oppa.training.run.run_folder import RunSpec, checkpoint_of
from oppa.trials.untrusted_file import insist

ADVISED, WITHDRAWN, HELD_BACK = "advised", "advice_withdrawn", "held_back"
"""Events of the ledger: a decision that was only advised, the end of advice, and a decision that a bound of the user held back."""
RECORDED, LEFT_BADLY, EARLY_FAILED = "recorded", "left_badly", "early_start_failed"
"""A checkpoint of the trainer, a failure of its processes after they had left, and one of ranks that had started early."""
PASSED_OVER, UNREADABLE = "passed_over", "unreadable"
"""A checkpoint from which attempts took no step, and the same once an earlier one was resumed: its record is removed."""
RESTARTED = "restarted"
"""First step of another process of oppa, with the seconds since the last step of the process before."""
MOVED = "moved"
"""First step on other hosts than those of `started`, for example because Slurm has requeued the job meanwhile."""
NOT_A_NUMBER = "loss_not_a_number"
"""First of the steps in a row whose loss is not finite, although their updates were not skipped."""
_MOST = 1e18
"""Largest statistic that is passed on, as in `StepFacts`."""
REPEATED = 10
"""Steps after which the same decision is written down again."""
NOT_MEASURED = NoiseReport(health="not_measured")
"""Noise report of a step whose gradients the trainer has not measured."""


class RunBook:
    """Keeps the ledger of a run, and reports to its controller.

    Args:
        folder: Folder of the run, which this process holds.
        run: The run.
    """

    def __init__(self, folder: Path, run: RunSpec) -> None:
        self.folder, self.run = folder, run
        self.controller: RunController | None = None
        self.limits = ChangeLimits(run.problem.run_options)
        """The user's limits, which count all changes of the run."""
        self.hosts: Sequence[str] = ()
        """Names of the hosts of the attempt that begins next; empty if they are not known."""
        self.elapsed_s = 0.0
        """Seconds of training so far, with pauses and changes, but without failed attempts."""
        self.step = self.samples = 0
        self._elapsed = {0: 0.0}
        self._last: tuple[str, Configuration, int] | None = None
        """The last decision that was not followed, with its step."""
        self._advice: Configuration | None = None
        """The advice that stands."""
        self._counted: Configuration | None = None
        """The last advice that counts as a change, however often it is repeated."""
        self._is_number = True
        """False if the last loss that was reported is not finite."""
        self._ledger = Ledger(folder)

    def close(self) -> None:
        """Close the ledger; raises EnvironmentLackingError if the file system still refuses lines of it."""
        with written(self.folder / ledger.FILE):
            self._ledger.close()

    @property
    def frozen(self) -> str:
        """Return which phase freezes the run now; empty if none does."""
        return self.limits.frozen(self.samples)

    @property
    def frozen_from(self) -> int | None:
        """Return the samples after which the next frozen phase begins, before which a change has to begin; None if none follows."""
        return self.limits.next_frozen(self.samples)

    def count_changes(self, lines: Iterable[Line]) -> None:
        """Count the changes in the lines of earlier processes, also if a later attempt has made them void."""
        for line in lines:
            if line["event"] in (ledger.CHANGED, ledger.UNDONE):
                self.limits.changed(line["time"])
            elif line["event"] == ADVISED and self.run.problem.run_options.advise:
                self._count_advice(Configuration.from_dict(line["after"]), line["time"])

    def resume(self, step: Line) -> None:
        """Go on after a step of the ledger; give all of them in their order."""
        self._count(step["step"], step["samples"][1], step["elapsed_s"])

    def _count(self, step: int, samples: int, elapsed_s: float) -> None:
        """Count a step that has ended, with the samples and the seconds of training up to its end."""
        self.step, self.samples, self.elapsed_s = step + 1, samples, elapsed_s
        self._elapsed[self.step] = elapsed_s
        self._elapsed.pop(self.step - KEPT, None)

    def started(self, configuration: Configuration, record: CheckpointRecord | None) -> None:
        """Begin an attempt at a checkpoint, or at the beginning; the steps after it are void, and no advice stands."""
        self._advice = self._last = None
        self.go_to(record)
        name = checkpoint_of(self.folder, record.step).name if record else None
        self.note(ledger.STARTED, checkpoint=name, configuration=configuration.to_dict(), hosts=list(self.hosts))

    def placed(self, hosts: Sequence[str]) -> None:
        """Write down the hosts on which an attempt has taken its first step, if they are others than at its beginning."""
        if list(hosts) != list(self.hosts):
            self.hosts = hosts
            self.note(MOVED, hosts=list(hosts))

    def go_to(self, record: CheckpointRecord | None) -> None:
        """Count from a checkpoint on, or from the beginning; the ledger stays as it is."""
        self.step, self.samples, self.elapsed_s = (record.step, record.samples, record.elapsed_s) if record else (0, 0, 0.0)

    def stepped(self, checked: CheckedStep, configuration: Configuration) -> None:
        """Write down a step, and report it to the controller."""
        report, noise = checked.report, checked.report.noise or NOT_MEASURED
        self._count(report.step, checked.samples.stop, self.elapsed_s + report.step_time_s + report.paused_s)
        scale = _bounded(noise.noise_scale, least=1 / _MOST)
        healthy = noise.health == "healthy" and scale is not None
        loss: dict[str, Any] = {"loss": report.loss} if report.reports_loss else {}
        facts = StepFacts.model_construct(
            step=report.step,
            samples=checked.samples.stop,
            configuration=configuration,
            step_time_s=report.step_time_s,
            elapsed_s=self.elapsed_s,
            noise_scale=scale if healthy else None,
            health=noise.health if healthy or noise.health != "healthy" else NOT_MEASURED.health,
            variance_ratio=_bounded(noise.variance_ratio),
            worker_variance_ratio=_bounded(noise.worker_variance_ratio),
            **loss,
            learning_rate=report.learning_rate,
        )
        recorded = ("loss", "learning_rate", "step_time_s", "elapsed_s", "health", "variance_ratio", "worker_variance_ratio", "noise_scale")
        self.note(
            ledger.STEP,
            step=report.step,
            samples=[checked.samples.start, checked.samples.stop],
            shares=[[checked.samples.start, checked.samples.stop, 0]],
            configuration=configuration.id,
            global_batch=configuration.global_batch,
            micro_batch=configuration.micro_batch,
            **{name: getattr(facts, name) for name in recorded},
            signal=noise.signal,
            noise=noise.noise,
            updated=not report.skipped,
            plan=checked.plan.number,
            paused_s=report.paused_s,
        )
        if report.reports_loss and not report.skipped:
            was_number, self._is_number = self._is_number, report.loss is not None
            if was_number and not self._is_number:
                self.note(NOT_A_NUMBER, step=report.step)
        if self.controller is not None:
            self.controller.step(facts)

    def changed(self, before: Configuration, decision: ControllerDecision, seconds: Mapping[str, float], failure: str = "") -> None:
        """Write down the outcome of a change, and report it to the controller."""
        event = ledger.change_event(seconds, failure)
        self._noted_change(event, before, decision, seconds=seconds, failure=failure)
        if event != ledger.REFUSED:
            self.limits.changed(time.time())
        total = math.fsum(seconds.values())
        self.elapsed_s += total
        if self.controller is not None:
            after = decision.configuration
            facts = ChangeFacts.model_construct(before=before, after=after, local_batches=[], seconds=total, failure=failure[:2000])
            self.controller.changed(facts)

    def limited(self, decision: ControllerDecision) -> str:
        """Return why the user's limits hold a decision back now; empty if they do not, or if it is the advice that stands."""
        if decision.configuration == self._advice:
            return ""
        return self.frozen if decision.configuration == self._counted else self.limits.held_back(self.samples, time.time())

    def advised(self, before: Configuration, decision: ControllerDecision, expected_s: float) -> None:
        """Write down a decision that nobody follows, which counts as a change; `expected_s` are the seconds that it would take."""
        self._count_advice(decision.configuration, time.time())
        self._advice = decision.configuration
        if self._is_news(ADVISED, decision):
            self._noted_change(ADVISED, before, decision, seconds={"expected": expected_s} if expected_s else {})

    def _count_advice(self, configuration: Configuration, now_s: float) -> None:
        if configuration != self._counted:
            self._counted = configuration
            self.limits.changed(now_s)

    def advice_withdrawn(self) -> None:
        """Write down that the policy no longer advises a change, if it did."""
        if self._advice is not None:
            self._advice = self._last = None
            self.note(WITHDRAWN)

    def held_back(self, before: Configuration, decision: ControllerDecision, why: str) -> None:
        """Write down a decision that a bound of the user excludes."""
        if self._is_news(HELD_BACK, decision):
            self._noted_change(HELD_BACK, before, decision, failure=why)

    def _is_news(self, event: str, decision: ControllerDecision) -> bool:
        """Return False if the same decision was written down within the last `REPEATED` steps."""
        last, present = self._last, (event, decision.configuration, self.step)
        if last is not None and last[:2] == present[:2] and self.step < last[2] + REPEATED:
            return False
        self._last = present
        return True

    def saved(self, state: SavedState, configuration: Configuration) -> None:
        """Record a checkpoint of the trainer, once all lines up to it are on disk; raises OSError if the file system refuses that."""
        record = CheckpointRecord.of(state, configuration, self._elapsed.get(state.step, self.elapsed_s))
        self._ledger.sync()
        record.write(self.folder, keep=self.run.problem.run_options.keep)
        self.note(RECORDED, checkpoint=checkpoint_of(self.folder, state.step).name, place=state.checkpoint)

    def dropped(self, step: int) -> None:
        """Remove the record of a checkpoint that is unreadable, or in whose place the trainer has written another one."""
        shutil.rmtree(checkpoint_of(self.folder, step), ignore_errors=True)

    def ended(self, *, finished: bool) -> None:
        """Write down the end of the run; raises EnvironmentLackingError if the file system refuses it."""
        self.note(ledger.ENDED, finished=finished, total=self.run.problem.run_options.samples)
        with written(self.folder / ledger.FILE):
            insist(self._ledger.sync)

    def note(self, event: str, **facts: Any) -> None:
        """Append a line with the time and the run's steps and samples, which `facts` may replace.

        Raises:
            EnvironmentLackingError: the file system has refused too many lines.
        """
        with written(self.folder / ledger.FILE):
            self._ledger.write(event, **{"time": time.time(), "step": self.step, "samples": self.samples, **facts})

    def _noted_change(
        self, event: str, before: Configuration, decision: ControllerDecision, *, seconds: Mapping[str, float] = {}, failure: str = ""
    ) -> None:
        self.note(
            event,
            before=before.to_dict(),
            after=decision.configuration.to_dict(),
            seconds=dict(seconds),
            received_bytes=0,
            failure=failure,
            reason=decision.reason,
            weighed=dict(decision.weighed),
        )


@contextlib.contextmanager
def written(path: Path) -> Iterator[None]:
    """Turn an OSError that is raised inside into an EnvironmentLackingError that names a file of the run."""
    try:
        yield
    except OSError as error:
        hint = "free some space, and run the command again, which resumes the run"
        raise EnvironmentLackingError(f"`{path}` cannot be written: {error.strerror}", hint=hint) from error


def _bounded(value: float | None, *, least: float = -_MOST) -> float | None:
    """Return a statistic of the trainer; None if it is beyond the bounds of `StepFacts`, as nothing can be computed with it."""
    return value if value is not None and least <= value <= _MOST else None
