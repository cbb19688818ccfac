"""Follow one attempt of a user's own trainer: read its reports, ask for other batches, and ask it to leave."""

import contextlib
import dataclasses
import heapq
import itertools
import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from oppa.control.own_trainer import contract
from oppa.control.own_trainer.checkpoint_record import is_recorded
from oppa.control.own_trainer.contract import Abilities, AttemptTerms, LeftState, PlanTerms, SavedState, StepReport
from oppa.control.own_trainer.reports import PLANS_HINT, ReportCheck
from oppa.control.own_trainer.run_book import RunBook
from oppa.errors import MeasurementError, TrainingError
from oppa.problem.configuration import Configuration
from oppa.training.run.run_controller import ControllerDecision
from oppa.trials.monitor import pause_of
from oppa.trials.trial_folder import MEASUREMENTS, LineReader
from oppa.trials.untrusted_file import insist
from oppa.units import format_seconds

ANSWER_STEPS, ANSWER_S = 50, 30.0
"""Steps and seconds within which the trainer's rank 0 answers a request, which `oppa_client` does at the end of a step."""
MOST_LEAD = 1000
"""Steps before a limit of samples within which a missing answer may mean that the request came too late. Loaders prefetch fewer steps."""
MOST_READS = 64
"""Most reads of new lines at once, each of at most `trial_folder.CALL_BYTES`."""
MOST_STATES = 64
"""Most checkpoints that are recorded at once, each with a write to disk."""
_STEP_HINT = "call `run.step` after each optimizer step"
PREEMPTION = "preemption"
"""Reason to leave if the site is about to take the devices away."""
EARLIER = "asked for by an earlier process of oppa"
"""Reason of a change that this process has not asked for."""
PAUSED_TO_LEAVE = "leaving"
"""Label of the pause that the client states once it has to leave; it ends at the deadline, which it therefore does not move."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchChange:
    """Holds a change of batch between two steps, from the beginning of its first step on."""

    before: Configuration
    decision: ControllerDecision
    step: int
    """Number of its first step, which the trainer may not have ended."""


class OwnAttempt:
    """Reads what the trainer writes in an attempt's folder, and writes oppa's requests there.

    Args:
        folder: Folder of the attempt.
        terms: What oppa stated before its start.
        book: Ledger and controller of the run.
        seen: Steps that the ledger has already; their lines are only checked.
        on_first: Called at the first step, before it is written down.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        folder: Path,
        terms: AttemptTerms,
        book: RunBook,
        *,
        seen: int = 0,
        on_first: "Callable[[OwnAttempt], None]" = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        model = book.run.problem.stated_model
        self.folder, self.terms, self.configuration = folder, terms, terms.configuration
        self.abilities: Abilities | None = None
        self.left: LeftState | None = None
        self.steps = 0
        """Steps that this attempt has reported."""
        self.leaving = ""
        """Reason for which it was asked to leave; empty if it was not."""
        self.leaving_s = 0.0
        """Monotonic seconds at which it was asked to leave, had taken all samples, or last paused after that; 0 before."""
        self.leave_limit_s = terms.leave_timeout_s
        """Seconds from then on within which it has to leave."""
        self.left_s = 0.0
        """Monotonic seconds at which it was seen to have left; its processes may still end their work."""
        self._book, self._seen, self._on_first, self._clock = book, seen, on_first, clock
        self._check = ReportCheck(
            terms.plan,
            step=terms.step,
            samples=terms.samples,
            total=terms.total_samples,
            seq_len=model.seq_len if model else None,
            resumes=terms.checkpoint is not None,
        )
        self._lines = LineReader(folder / MEASUREMENTS)
        self._saved: dict[str, tuple[int, int]] = {}
        """Time and inode of each statement of a checkpoint that was read; the trainer may replace it."""
        self._paths = {} if terms.checkpoint is None else {terms.checkpoint: terms.step}
        """Step of each checkpoint."""
        self._waited_s = math.inf
        """Monotonic seconds at which its processes started, or last paused before their first step; infinite before the start."""
        self._plans, self._configurations = {terms.plan.number: terms.plan}, {terms.plan.number: terms.configuration}
        self._decisions: dict[int, ControllerDecision] = {}
        self._change: BatchChange | None = None
        """The last change of batch whose first step was taken."""
        self._asked_at = (0, 0.0)
        """Step and monotonic seconds of the last request."""
        self._before: int | None = None
        """Samples after which the trainer ignores the last request; None if it never does."""

    @property
    def plan(self) -> PlanTerms:
        """Return the newest plan that the trainer has announced."""
        return self._check.newest

    @property
    def step(self) -> int:
        """Return the steps of the run so far."""
        return self._check.step

    @property
    def change(self) -> BatchChange | None:
        """Return the last change of batch, also if the trainer has only begun its first step; None without one."""
        due = self._check.due
        if due is None:
            return self._change
        return BatchChange(before=self.configuration, decision=self._decision(due.number), step=due.from_step)

    @property
    def is_asked(self) -> bool:
        """Return True while the trainer has not begun the last batch that it was asked for, or is leaving."""
        return bool(self._decisions) or bool(self.leaving)

    @property
    def is_done(self) -> bool:
        """Return True if the trainer has nothing more to take."""
        return self._check.is_done(whole_steps=self.abilities is not None and self.abilities.whole_steps)

    def read_last(self) -> None:
        """Read what is new once all processes have ended; wait while the file system refuses the record of the last checkpoint.

        Raises:
            MeasurementError: as `read` does, or the checkpoint cannot be recorded.
            TrainingError: the trainer contradicts its plan.
        """
        try:
            insist(lambda: self.read(must=True))
        except OSError as error:
            raise MeasurementError(f"the checkpoint with which the trainer left cannot be recorded: {error.strerror}") from error

    def read(self, *, must: bool = False) -> None:
        """Read everything new, and write it down. A checkpoint that cannot be recorded now is read again.

        Args:
            must: Raise OSError if the checkpoint with which the trainer left cannot be recorded.

        Raises:
            MeasurementError: a file is damaged, or its version is unknown.
            TrainingError: the trainer contradicts its plan.
        """
        if self.abilities is None:
            self.abilities = contract.read_abilities(self.folder)
        # What is written last is read first: a checkpoint comes after its steps, and a step after its plan.
        left = contract.read_record(LeftState, self.folder, contract.LEFT) if self.left is None else None
        saved = self._new_saved()
        self.read_steps()
        newest = left or (saved[-1][0] if saved else None)
        for state, name in saved:
            try:
                self._keep(state, may_be_gone=state is not newest)
            except OSError:
                del self._saved[name]
        if self.is_done and self.abilities is not None and not self.leaving_s:
            self.leaving_s = self._clock()
        if left is not None:
            self._require_left(left)
            try:
                self._keep(left)
            except OSError:
                if must:
                    raise
                return
            self.left, self.left_s = left, self._clock()

    def read_steps(self) -> bool:
        """Read new plans and steps, and write them down; return False if there was no step.

        Raises:
            MeasurementError: as `read` does.
            TrainingError: as `read` does.
        """
        reports = [contract.parse_record(StepReport, line, MEASUREMENTS) for line in self._new_lines()]
        self._check.require_one_start(reports)  # before the plans, which begin again too
        # Each plan comes before its first step, and after the steps whose samples it counts.
        in_order: Iterator[PlanTerms | StepReport] = heapq.merge(self._new_plans(), reports, key=_step_of)
        for new in in_order:
            if isinstance(new, PlanTerms):
                self._check.announced(new, self._asked(self.plan.number + 1))
                self._plans[new.number] = new
            else:
                self._take(new)
        return bool(reports)

    def ask(self, decision: ControllerDecision, *, before: int | None = None) -> None:
        """Ask for another batch in the same layout, which begins before so many samples, or not at all."""
        number = self.plan.number + 1
        self._configurations[number], self._decisions[number] = decision.configuration, decision
        self._asked_at, self._before = (self._check.step, self._clock()), before
        contract.ask_for(self.folder, number, decision.configuration, before=before)

    def ask_to_leave(self, reason: str, *, before: int | None = None) -> None:
        """Ask the trainer to save and leave before so many samples, or not at all for this reason."""
        now, limit_s = self._clock(), self._limit_s(reason)
        if not self.leaving_s:
            self.leaving_s, self.leave_limit_s = now, limit_s
        self.leaving, self.leave_limit_s = reason, min(self.leave_limit_s, now - self.leaving_s + limit_s)
        self._before = before
        contract.ask_to_leave(self.folder, reason, limit_s, before=before)

    @property
    def missed(self) -> int | None:
        """Return the limit of samples that the last request missed, so that the trainer ignores it; None if the trainer may follow it."""
        if self._before is None or self._check.samples < self._before:
            return None
        # Rank 0 announces what it follows before it begins another step.
        announced = contract.is_leaving(self.folder) if self.leaving else self.plan.number >= max(self._decisions, default=0)
        return None if announced else self._before

    def withdraw(self) -> ControllerDecision | None:
        """Forget a request that the trainer ignores; return the decision on another batch, None if it was asked to leave."""
        self._before, self.leaving, self.leaving_s = None, "", 0.0
        return self._decisions.popitem()[1] if self._decisions else None

    def _limit_s(self, reason: str) -> float:
        """Return the seconds that the trainer has to leave for a reason."""
        grace_s = self._book.run.problem.run_options.preemption_grace_s
        return grace_s if reason == PREEMPTION and grace_s is not None else self.terms.leave_timeout_s

    def started(self) -> None:
        """Note that its processes start: until now it may have waited for the devices of another trial."""
        self._waited_s = self._clock()

    def require_start(self, limit_s: float) -> None:
        """Raise MeasurementError, which another attempt may follow, if the trainer takes no first step in its time, pauses apart."""
        if self.steps:
            return
        if pause_of(self.folder) is not None:
            self._waited_s = self._clock()
        elif self._clock() > self._waited_s + limit_s:
            call = "open the run with `oppa_client.open_run`" if self.abilities is None else _STEP_HINT
            raise MeasurementError(
                f"the trainer took no step within {format_seconds(limit_s)} after its start",
                hint=f"{call} on every rank; raise `trial_time` in [limits] if the first step comes later",
            )

    def require_answers(self) -> None:
        """Raise TrainingError if the trainer has not answered a request, or not left, in its time; pauses move the time to leave."""
        step, asked_s = self._asked_at
        number = max(self._decisions, default=0)
        waited = self._check.step > step + ANSWER_STEPS and self._clock() > asked_s + ANSWER_S
        may_miss = self._before is not None and self._before - self._check.samples <= MOST_LEAD * self.configuration.global_batch
        if number > self.plan.number and waited and not may_miss:
            message = f"the trainer was asked for plan {number} at step {step}, and has not taken it up at step {self._check.step}"
            raise TrainingError(message, hint="call `run.step` on rank 0 after each optimizer step")
        if not self.leaving_s or self.left is not None:
            return
        if self.leaving != PREEMPTION and pause_of(self.folder) not in (None, PAUSED_TO_LEAVE):
            self.leaving_s = self._clock()  # but a site that takes its devices away waits for no pause
        elif self._clock() > self.leaving_s + self.leave_limit_s:
            limit = format_seconds(self.leave_limit_s)
            why = f"it was asked to leave ({self.leaving})" if self.leaving else "all samples were taken"
            key = "preemption_grace" if self.leaving == PREEMPTION else "leave_timeout"
            message = f"the trainer saved nothing within {limit} after {why}; it has taken {self._check.step} steps"
            raise TrainingError(message, hint=f"save and call `run.leave` if `run.leaving`, or raise `{key}` in [train]")

    def _take(self, report: StepReport) -> None:
        checked = self._check.taken(report)
        if not self.steps:
            self._on_first(self)
        self.steps += 1
        before, self.configuration = self.configuration, self._configurations[checked.plan.number]
        decision = self._decision(checked.plan.number)
        self._decisions.pop(checked.plan.number, None)
        if checked.begins_plan:
            self._change = BatchChange(before=before, decision=decision, step=report.step)
        if report.step < self._seen:
            return
        if checked.begins_plan:
            self._book.changed(before, decision, {"rebatch": 0.0})
        self._book.stepped(checked, self.configuration)

    def _decision(self, number: int) -> ControllerDecision:
        """Return the decision on a plan that was announced, maybe one of an earlier process of oppa."""
        return self._decisions.get(number) or ControllerDecision(configuration=self._configurations[number], reason=EARLIER)

    def _new_lines(self) -> list[bytes]:
        """Return all lines that were complete when this began, up to a bound on what a flooding trainer can make oppa read."""
        found: list[bytes] = []
        for _ in range(MOST_READS):
            new = list(self._lines.new())
            found += new
            if not new:
                break
        return found

    def _new_plans(self) -> Iterator[PlanTerms]:
        """Read the plans that rank 0 has announced, in the order of their numbers."""
        for number in itertools.count(self.plan.number + 1):
            plan = contract.read_record(PlanTerms, self.folder, contract.PLAN.format(number))
            if plan is None:
                return
            yield plan

    def _asked(self, number: int) -> Configuration:
        """Return the configuration that was asked for as a plan, maybe by an earlier process of oppa."""
        if number not in self._configurations:
            sizes = contract.read_asked(self.folder, number)
            if sizes is None:
                message = f"the trainer announced `{contract.PLAN.format(number)}`, which nobody asked for"
                raise TrainingError(message, hint=PLANS_HINT)
            self._configurations[number] = Configuration.from_dict({**self.configuration.to_dict(), **sizes})
        return self._configurations[number]

    def _new_saved(self) -> list[tuple[SavedState, str]]:
        """Return the checkpoints that were stated since the last call, with the names of their files, in the order of their steps.

        They are as many of the newest as the run keeps.
        """
        found, most = [], min(MOST_STATES, self._book.run.problem.run_options.keep)
        for path in sorted(self.folder.glob(contract.SAVED), key=_number_of)[-most:]:
            with contextlib.suppress(OSError):  # it was replaced, or is read again
                facts = path.lstat()
                version = facts.st_mtime_ns, facts.st_ino
                if self._saved.get(path.name) != version and (state := contract.read_record(SavedState, self.folder, path.name)):
                    self._saved[path.name] = version
                    found.append((state, path.name))
        return sorted(found, key=lambda each: each[0].step)

    def _require_left(self, left: LeftState) -> None:
        if left.reason == "finished" and not self.is_done and self.terms.total_samples is not None:
            taken = f"{self._check.samples} of {self.terms.total_samples} samples"
            raise TrainingError(f"the trainer left as finished after {taken}", hint="train while `run.leaving` is None")
        if left.step != self._check.step:
            message = f"the trainer left after {left.step} steps, but has reported {self._check.step}"
            raise TrainingError(message, hint=_STEP_HINT)

    def _keep(self, state: SavedState, *, may_be_gone: bool = False) -> None:
        """Record a checkpoint, unless a process before has done so.

        Args:
            state: What the trainer stated.
            may_be_gone: The trainer may have removed it, because it has saved another one since.
        """
        self._check.require_state(state)
        if not state.is_present:
            if may_be_gone:
                return
            message = f"the trainer stated the checkpoint `{state.checkpoint}`, which does not exist"
            raise TrainingError(message, hint="call `run.saved` and `run.leave` after the checkpoint is complete")
        before = self._paths.setdefault(state.checkpoint, state.step)
        if state.step >= self._seen or state.step == self.terms.step or not is_recorded(self._book.folder, state.step):
            trained = self._trained(state)
            self._book.saved(trained, self._configurations.get(trained.plan.number, self.configuration))
        if before != state.step:
            self._book.dropped(before)
            message = f"the trainer stated `{state.checkpoint}` after {state.step} steps, which held the state after {before} steps"
            raise TrainingError(message, hint="give each checkpoint a path of its own")

    def _trained(self, state: SavedState) -> SavedState:
        """Return a state with the plan that trained it. A plan that begins with the next step has not, and the trainer may fail in it."""
        before = self._plans.get(state.plan.number - 1)
        return state.model_copy(update={"plan": before}) if before is not None and state.plan.from_step == state.step else state


def _step_of(new: PlanTerms | StepReport) -> int:
    return new.from_step if isinstance(new, PlanTerms) else new.step


def _number_of(saved: Path) -> int:
    """Return the steps that the name of a stated checkpoint has; -1 for a name that is not the client's."""
    found = re.fullmatch(r"saved-(\d{1,16})\.json", saved.name, re.ASCII)
    return int(found[1]) if found else -1
