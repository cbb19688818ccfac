"""Check what a trainer reports against its plan: which samples a step took, and under which plan.

A trainer that contradicts its plan is refused with the numbers, because its later numbers prove nothing either.
"""

import dataclasses
from collections.abc import Sequence
from itertools import pairwise

from oppa.control.own_trainer.contract import PlanTerms, SavedState, StepReport
from oppa.errors import MeasurementError, TrainingError
from oppa.problem.configuration import Configuration

KEPT = 100_000
"""Number of the newest steps whose samples and seconds are kept for checkpoints; a trainer takes millions of steps."""
PLANS_HINT = "leave the files of plans to `oppa_client`"
HINT = "take `samples` from `run.plan` in each step, and report what all ranks took; see docs/how-to/own-trainer.md"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckedStep:
    """Holds a step that agrees with its plan."""

    report: StepReport
    samples: range
    """Numbers of its samples, counted from the start of the run."""
    plan: PlanTerms
    begins_plan: bool
    """True if the plan begins with this step."""


class ReportCheck:
    """Checks the steps of one attempt, in their order.

    Args:
        plan: Plan in which the attempt begins.
        step: Number of its first step.
        samples: Samples taken before that.
        total: Samples of the whole training; None if it has no end.
        seq_len: Most tokens of a sample; None if it is unknown.
        resumes: The attempt has a checkpoint to resume from.
    """

    def __init__(self, plan: PlanTerms, *, step: int, samples: int, total: int | None, seq_len: int | None, resumes: bool) -> None:
        self.plan, self.step, self.samples = plan, step, samples
        self._first = step
        self._coming: list[PlanTerms] = []
        self._total, self._seq_len, self._resumes = total, seq_len, resumes
        self._ends = {step: samples}
        """Samples taken after so many steps."""

    @property
    def newest(self) -> PlanTerms:
        """Return the newest plan that rank 0 has announced."""
        return self._coming[-1] if self._coming else self.plan

    @property
    def due(self) -> PlanTerms | None:
        """Return the plan that begins with the next step, if another one held before it; else None."""
        return self._coming[0] if self._coming and self._coming[0].from_step <= self.step else None

    def is_done(self, *, whole_steps: bool) -> bool:
        """Return True if all samples are taken, or fewer are left than the next step takes, for a trainer that cuts no step."""
        return self._total is not None and self._total - self.samples < ((self.due or self.plan).global_batch if whole_steps else 1)

    def announced(self, plan: PlanTerms, asked: Configuration) -> None:
        """Take up a plan that begins with a coming step.

        Args:
            plan: What the trainer has announced.
            asked: The configuration that it was asked for.

        Raises:
            TrainingError: the plan begins in the past, or differs from what was asked for.
        """
        if plan.from_step < self.step:
            raise TrainingError(f"the trainer announced that {plan.text}, after it had taken {self.step} steps", hint=HINT)
        number, step = self.newest.number + 1, plan.from_step
        due = self.newest.resumed(asked, number=number, step=step, samples=self._samples_at(step))
        if plan != due:
            ours, theirs = due.model_dump(), plan.model_dump()
            differ = [f"`{name} = {value}`, not {ours[name]}" for name, value in theirs.items() if value != ours[name]]
            message = f"the trainer announced a plan {number} that it was not asked for: {'; '.join(differ)}"
            raise TrainingError(message, hint=PLANS_HINT)
        self._coming.append(plan)

    def _samples_at(self, step: int) -> int:
        """Return the samples that will be taken before a coming step, under the plans that are known."""
        plans = [self.plan, *self._coming]
        begins = [self.step, *(max(self.step, min(step, plan.from_step)) for plan in self._coming), max(self.step, step)]
        return self.samples + sum(plan.global_batch * (end - begin) for plan, (begin, end) in zip(plans, pairwise(begins), strict=True))

    def require_one_start(self, reports: Sequence[StepReport]) -> None:
        """Raise MeasurementError, which another attempt may follow, if new reports begin again at the first step of the attempt."""
        step = self.step
        for report in reports:
            if report.step == self._first < step:
                message = f"the trainer began again at step {self._first}, after it had taken {step} steps"
                raise MeasurementError(message, hint="remove `--max-restarts` from the launch line: oppa restarts the trainer")
            step = report.step + 1

    def taken(self, report: StepReport) -> CheckedStep:
        """Return a step with its samples; raises TrainingError if the report contradicts its plan."""
        self._require_order(report)
        begins = bool(self._coming) and self._coming[0].from_step <= report.step
        before, plan = self.plan, self._coming[0] if begins else self.plan
        self._require_plan(report, plan, before)
        if begins:
            self.plan = self._coming.pop(0)
        samples = range(self.samples, self.samples + report.samples)
        self.step, self.samples = self.step + 1, samples.stop
        self._ends[self.step] = samples.stop
        self._ends.pop(self.step - KEPT, None)
        return CheckedStep(report=report, samples=samples, plan=plan, begins_plan=begins)

    def _require_order(self, report: StepReport) -> None:
        if report.step != self.step:
            raise TrainingError(f"the trainer reported step {report.step} where step {self.step} follows", hint=HINT)
        if self._resumes and not report.resumed:
            cause = f"the trainer took step {report.step} without reading `run.resume`, so it did not resume its checkpoint"
            raise TrainingError(cause, hint="load `run.resume.checkpoint` before the first step")

    def _require_plan(self, report: StepReport, plan: PlanTerms, before: PlanTerms) -> None:
        left = None if self._total is None else self._total - self.samples
        due = plan.global_batch if left is None else min(plan.global_batch, left)
        if report.samples != due:
            ignored = plan is not before and report.samples == before.global_batch
            verb = "ignores its plan" if ignored else "contradicts its plan"
            last = f", of which {left} samples were left" if due != plan.global_batch else ""
            message = f"the trainer {verb}: {plan.text}{last}, but step {report.step} took {report.samples} samples"
            raise TrainingError(message, hint=HINT)
        if report.plan != plan.number:
            raise TrainingError(f"step {report.step} was taken under plan {report.plan}, but {plan.text}", hint=HINT)
        if self._seq_len is not None and report.tokens is not None and report.tokens > report.samples * self._seq_len:
            most = f"{report.samples} samples of at most {self._seq_len} tokens"
            message = f"step {report.step} reports {report.tokens} tokens, but took {most}"
            raise TrainingError(message, hint="report the step's own tokens, or correct `seq_len` in [model]")

    def require_state(self, state: SavedState) -> None:
        """Raise TrainingError if a checkpoint is of a step that was not reported, or states other samples."""
        known = self._ends.get(state.step)
        if known != state.samples:
            reported = "which it has not reported" if known is None else f"after which it had taken {known}"
            message = f"the trainer saved {state.samples} samples after {state.step} steps, {reported}"
            raise TrainingError(message, hint="pass `step` and `samples` of the saved state to `run.saved`")
