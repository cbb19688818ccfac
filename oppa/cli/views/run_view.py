"""Show the progress of a run on stderr: a live view on a terminal, an occasional line elsewhere."""

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from oppa.cli.trial_session import again_with, print_resume, resumable
from oppa.cli.views import style
from oppa.cli.views.search_view import REFRESH_S
from oppa.cli.views.summary import HEAD, job_line
from oppa.control.own_trainer import run_book
from oppa.control.registry import RATIOS, needed_ratio, needs_noise
from oppa.control.training_session.callback import RunCallback, RunSession
from oppa.control.training_session.result import TrainResult
from oppa.problem.configuration import Configuration
from oppa.training.run import ledger
from oppa.training.run.ledger import Line, Tail
from oppa.training.run.run_folder import STOP, RunSpec, checkpoints
from oppa.training.run.supervision import Ending, Outcome
from oppa.training.statistics.noise_scale import Health
from oppa.trials import logs
from oppa.trials.interruption import Interruption
from oppa.trials.trial import TrialResult
from oppa.trials.trial_folder import Measurement
from oppa.units import format_batch, format_bytes, format_number, format_seconds

if TYPE_CHECKING:
    from oppa.control.own_trainer.advice import Advice
    from oppa.problem.problem import Problem
    from oppa.table.refinement import StepTimeObservation
    from oppa.table.table import Table

LINE_S = 10.0
_TITLE = 8
"""Width of the titles of a result's rows, with the space after them."""
RECENT = 20
"""Number of last steps whose mean is shown as the present speed."""
UNMEASURED, INCOMPARABLE = 50, 400
"""Steps without a measurement of gradients, after which a message states that the policy waits for one; measured ones for the norm test.

The second number is that of steps whose gradients are measured and show no noise; an estimate is reliable sooner.
"""

_NO_NOISE = "measures no gradient noise", "`oppa.training.GradientStatistics`"
_NO_WORKERS = "compares no gradients of workers", '`oppa.training.GradientStatistics(model, over="workers")`, and several ranks'
_SEVERAL = "several micro-batches in each step"
_NO_PARTS = (
    "measures gradients that show no noise",
    f"the micro-batches of the plan that `statistics.begin` returns, {_SEVERAL}, or several replicas under Megatron",
)
"""Lack of a trainer whose policy decides nothing, and its remedy: in general, if the policy compares workers, and if nothing differs."""


def print_run(run: RunSpec, folder: Path) -> None:
    """Print the job, the layout, the training options, and the folder of the run, to stderr."""
    lines = [
        job_line(run.problem),
        f"[bold]layout[/] {escape(_layout(run.configuration))}",
        f"[bold]train[/]  {_options_line(run.problem)}",
        f"[bold]run[/]    {escape(str(folder))}{_advises(run)}",
        "",
    ]
    style.print_rows(style.err(), lines, HEAD)


def _advises(run: RunSpec) -> str:
    """Return the line that a policy only advises; empty if it acts."""
    if not run.problem.run_options.advise or run.policy.partition(",")[0] == "static":
        return ""
    return "\n[bold]policy[/] advises, and changes nothing; `--no-advise` lets it act"


def print_outcome(folder: Path, outcome: Outcome, lines: Sequence[Line]) -> None:
    """Print how the run ended, its steps and samples by the valid `lines` of its ledger, and its newest checkpoint, to stderr."""
    count, last = 0, None
    for line in lines:
        count, last = (count + 1, line) if line["event"] == ledger.STEP else (count, last)
    endings = {Ending.FINISHED: "[green]trained to its end[/]", Ending.FAILED: "[red]failed[/]"}
    ended = endings.get(outcome.ending, outcome.ending.value)
    rows = [("run", ended if outcome.attempts else "[green]complete before[/]; no ranks were started")]
    if outcome.ending is Ending.FAILED:
        rows += [("cause", escape(outcome.last.cause)), ("stderr", escape(str(outcome.folder / logs.STDERR)))]
    if last is not None:
        rows += [
            ("steps", f"{count:,}, loss {style.number(last['loss'])}"),
            ("samples", f"{ledger.require_whole(lines):,}, each once and in order"),
        ]
    rows += [("saved", escape(str(path))) for path in checkpoints(folder)[:1]]
    style.print_rows(style.err(), [f"[bold]{name:<{_TITLE}}[/]{value}" for name, value in rows], _TITLE)


def print_refined(table: "Table", better: "Table", seen: Sequence["StepTimeObservation"], folder: Path) -> None:
    """Print the rows of a table that a run's step times have changed, to stderr."""
    before, after = ({row.configuration: row for row in each.rows} for each in (table, better))
    lines = [f"[bold]table[/]   refined by {sum(each.steps for each in seen):,} steps: {escape(str(folder))}"]
    for configuration in dict.fromkeys(each.configuration for each in seen):
        was, now = before.get(configuration), after[configuration]
        earlier = f"{style.rate(was.steps_per_s, was.stddev)} steps/s in the table" if was else "not in the table"
        lines.append(f"        {escape(_layout(configuration))}: {style.rate(now.steps_per_s, now.stddev)} steps/s, {earlier}")
    style.print_rows(style.err(), lines, _TITLE)


def print_worth(account: Mapping[str, float | None]) -> None:
    """Print the goodput gain and regret of a run's decisions to stderr; print nothing if they are unknown."""
    gain, regret = account["gain"], account["regret"]
    if gain is not None and regret is not None:
        gained = f"{gain:+.1%} over the first configuration" if account["changed"] else "no change was made"
        side = "below" if regret >= 0 else "above"
        line = f"[bold]goodput[/] {gained}; {abs(regret):.1%} {side} the table's best at every moment"
        style.print_rows(style.err(), [line], _TITLE)


ENDED = {Ending.FINISHED: 0, Ending.FAILED: 1, Ending.STOPPED: 130, Ending.REVOKED: 3}
"""Exit codes of the endings of a run."""


def print_advice(advice: "Advice") -> None:
    """Print what advice that was not followed would have been worth, and how to follow it, to stderr."""
    line = f"[bold]advice[/]  {escape(_layout(advice.last))}: {advice.worth}; nothing was changed"
    style.print_rows(style.err(), [line, "        let the policy act: `--no-advise`"], _TITLE)


def print_ended(result: TrainResult) -> int:
    """Print how a run ended, what its decisions gained, and how to resume, to stderr; return the exit code."""
    if not result.reached:
        style.err().print("warning: the ranks never reached the control service, which made no decision", markup=False, soft_wrap=True)
    print_outcome(result.folder, result.outcome, result.lines)
    if result.worth:
        print_worth(result.worth)
    if advice := result.advice:
        print_advice(advice)
    if result.table and result.refined:
        print_refined(result.table, result.refined, result.observations, result.folder / "table")
    if result.outcome.ending in (Ending.STOPPED, Ending.REVOKED):
        print_resume(again_with("--run", result.folder))
    return ENDED[result.outcome.ending]


class RunSessionView:
    """Watches the run of a command; the interface calls it with the session, as a callback."""

    def __init__(self) -> None:
        self._interruption = Interruption()

    def caught(self) -> contextlib.AbstractContextManager[None]:
        """Handle the signals that ask the command to stop, inside the context."""
        return self._interruption.caught()

    @contextlib.contextmanager
    def __call__(self, session: RunSession) -> Iterator[RunCallback]:
        """Print the job of a run, and yield the view of its progress."""
        print_run(session.run, session.folder)
        view = RunView(session.run, session.folder, self._interruption)
        with resumable(again_with("--run", session.folder)), view.live:
            yield view


class RunView(RunCallback):
    """Prints a line for each event; shows the progress in a live view on a terminal, and in a line every LINE_S seconds elsewhere."""

    def __init__(self, run: RunSpec, folder: Path, interruption: Interruption) -> None:
        self._run, self._folder, self._interruption = run, folder, interruption
        self.live = Live(console=style.err(), auto_refresh=False, transient=True)
        """The live view, shown inside its context; where stderr is no terminal, it prints nothing."""
        self._tail = Tail(folder)
        self._last: Line | None = None
        self._times = deque[float](maxlen=RECENT)
        self._steps_of_attempt = 0
        self._shown_at = time.monotonic()
        self._shown: Line | None = None
        """The step of the last line, which is not printed twice."""
        self._said = ""
        """The last event that was shown."""
        self._unfollowed: tuple[str, Any, str] | None = None
        """The last decision that was advised or held back, if it may still stand."""
        self._ratio = needed_ratio(run.policy) if run.problem.command else ""
        """Statistic of a step that the policy needs of a user's own trainer; empty if it needs the noise scale, as others do."""
        self._unmeasured = 0 if needs_noise(run.policy) else None
        """Steps so far whose gradients the trainer did not measure; None if that does not matter, or is known to the user."""
        self._is_few = False
        """True once gradients were measured, but the estimate lacks micro-batches."""

    def waiting(self) -> None:
        """Raise KeyboardInterrupt if the user asked to stop."""
        self._interruption.check()

    def controlled(self, url: str) -> None:
        """Print the address of the live page."""
        from oppa.control.service.page import LIVE_PAGE

        style.err().print(f"live    {style.private_link(url, self._folder / 'control' / LIVE_PAGE)}", markup=False, soft_wrap=True)

    def began(self, attempt: Path) -> None:
        """Reset the counters: a new attempt has no step to save."""
        self._steps_of_attempt = 0
        self._last = None

    def stepped(self, measurement: Measurement) -> None:
        """Count a step of this attempt, which Ctrl-C saves."""
        self._steps_of_attempt += 1

    def failed(self, attempt: Path, result: TrialResult, *, goes_on: bool) -> None:
        """Print why an attempt failed, and the checkpoint from which the run resumes if it goes on."""
        self._look()
        saved = next((path.name for path in checkpoints(self._folder)), "the beginning")
        following = f"; the run resumes from {saved}" if goes_on else ""
        style.err().print(f"[red]attempt {int(attempt.name)} {result.outcome}[/]: {escape(result.cause)}{following}")

    def tick(self) -> None:
        """Show new events; raise KeyboardInterrupt if the user asked to stop and no step needs saving."""
        if not self._steps_of_attempt:
            self._interruption.check()
        self._look()
        self._show()

    def stop_requested(self) -> bool:
        """Return True if the user asked to stop, by a signal or a file."""
        return self._interruption.asked or (self._folder / STOP).exists()

    def is_preempted(self) -> bool:
        """Return True if the stop was requested by SIGTERM."""
        return self._interruption.is_preempted

    def _look(self) -> None:
        for line in self._tail.new():
            if line["event"] == ledger.STARTED:
                self._last = None  # a process that was killed may have left steps that are written down only now
            if line["event"] == ledger.STEP:
                if self._last is None or any(self._last[name] != line[name] for name in ("configuration", "global_batch")):
                    self._times.clear()  # another attempt or configuration has another speed
                self._last = line
                self._times.append(line["step_time_s"])
                if not line["updated"]:
                    style.err().print(f"step {line['step']}: [yellow]gradients are not finite[/]; no weight was changed")
                self._warn_unmeasured(line)
            elif (text := _event(line)) and text != self._said and not self._stands(line):  # a trainer may save twice after its last step
                style.err().print(text)
                self._said = text

    def _stands(self, line: Line) -> bool:
        """Return True if a line repeats the last decision that was not followed; the ledger has it again every few steps."""
        before = self._unfollowed
        if line["event"] in (run_book.ADVISED, run_book.HELD_BACK):
            self._unfollowed = (line["event"], line["after"], line["failure"])
        elif line["event"] in (ledger.STARTED, ledger.CHANGED, run_book.WITHDRAWN):
            self._unfollowed = None
        return self._unfollowed is not None and self._unfollowed == before and line["event"] == before[0]

    def _warn_unmeasured(self, line: Line) -> None:
        """Print once that a trainer does not measure the gradients without which its policy decides nothing."""
        if self._unmeasured is None:
            return
        options, few = self._run.problem.run_options, Health.TOO_FEW_SAMPLES.name.lower()
        self._is_few |= not self._ratio and line["health"] == few and options.statistics_every != 0
        is_known = line.get(self._ratio) is not None if self._ratio else line["health"] not in (run_book.NOT_MEASURED.health, few)
        self._unmeasured = None if is_known else self._unmeasured + 1
        interval = options.statistics_every or 1
        limit = UNMEASURED * interval if self._ratio else INCOMPARABLE * interval if self._is_few else UNMEASURED
        if self._unmeasured == limit:
            self._unmeasured = None
            what, hint = self._lack()
            why = f"the trainer {what}, without which `{self._run.policy}` changes nothing"
            style.err().print(f"[yellow]warning[/] {escape(why)}: give it {escape(hint)}", soft_wrap=True)

    def _lack(self) -> tuple[str, str]:
        """Return what the trainer lacks, and the remedy."""
        if self._ratio == RATIOS["norm-test-paper"]:
            return _NO_WORKERS
        if not self._is_few:
            return (_NO_NOISE[0], "`statistics_every` of 1 or more") if self._run.problem.run_options.statistics_every == 0 else _NO_NOISE
        return _NO_PARTS if self._run.problem.command else (_NO_PARTS[0], _SEVERAL)

    def _show(self) -> None:
        """Redraw the live view on a terminal; elsewhere print a line if a step was taken since the last one."""
        is_terminal = style.err().is_terminal
        is_due = time.monotonic() - self._shown_at >= (REFRESH_S if is_terminal else LINE_S)
        if is_due and is_terminal:
            self._shown_at = time.monotonic()
            self.live.update(self._view(), refresh=True)
        elif is_due and self._last and self._last is not self._shown:
            self._shown_at, self._shown = time.monotonic(), self._last
            style.err().print("   ".join(f"{name} {value}" for name, value in self._facts(self._last) if name != "layout"))

    def _view(self) -> RenderableType:
        rows = self._facts(self._last) if self._last else [("steps", "the ranks are starting")]
        if self._interruption.asked:
            rows += [("stop", "after this step and its checkpoint; Ctrl-C again stops at once")]
        return Group(Text(), *(Text.from_markup(f"  [bold]{name:<8}[/]{escape(value)}") for name, value in rows))

    def _facts(self, line: Line) -> list[tuple[str, str]]:
        """Return names and texts that describe the progress of the run after a step."""
        seen, total = line["samples"][1], self._run.problem.run_options.samples
        speed = len(self._times) / sum(self._times)
        per_s = speed * line["global_batch"]
        left = f", {format_seconds(max(0, total - seen) / per_s)} left" if total else ""
        known = f"{format_number(line['noise_scale'])} sequences" if line["health"] == "healthy" else line["health"].replace("_", " ")
        return [
            ("steps", f"{line['step'] + 1:,}"),
            ("samples", f"{seen:,}{f' of {total:,}' if total else ''}{left}"),
            ("loss", style.number(line["loss"]) + ("" if (rate := line["learning_rate"]) is None else f"   learning rate {rate:.3g}")),
            ("speed", f"{format_number(speed)} steps/s, {format_number(per_s)} samples/s"),
            ("noise", f"{known}"),
            ("layout", f"{line['configuration']}, {format_batch(line['global_batch'], line.get('local_batches', ()))}"),
        ]


def _event(line: Line) -> str:
    """Return the text for a line of the ledger that is no step; empty if it is not shown."""
    seconds = format_seconds(sum(line["seconds"].values())) if isinstance(line.get("seconds"), dict) else ""
    where = f"step {line['step']}:"
    match line["event"]:
        case ledger.STARTED:
            return f"{where} resumes from {line['checkpoint']}" if line["checkpoint"] else ""
        case ledger.UNUSABLE:
            place, why = escape(line["place"]), escape(line["failure"])
            return f"{where} [yellow]warning[/] a newer checkpoint cannot be resumed: {why}; it is kept as {place}"
        case ledger.UNSAVED:
            return f"{where} [yellow]warning[/] no checkpoint was saved: {escape(line['failure'])}; training goes on, and saves later"
        case ledger.CHANGED:
            moved = f", {format_bytes(line['received_bytes'])} moved" if line["received_bytes"] else ""
            return f"{where} [cyan]{escape(_after(line))}[/] in {seconds}{moved}"
        case ledger.ROLLED_BACK:
            layout = escape(_after(line))
            return f"{where} [yellow]the loss spike persists: rolled back to {line['checkpoint']}[/], [cyan]{layout}[/] in {seconds}"
        case ledger.NOT_ROLLED_BACK:
            return (
                f"{where} [yellow]the loss stays up or is not a number, and earlier weights are not restored: {escape(line['failure'])}[/]"
            )
        case ledger.UNDONE | ledger.REFUSED:
            return f"{where} [yellow]change {line['event']}[/]: {escape(line['failure'])}"
        case ledger.VALIDATED:
            right = f", accuracy {line['accuracy']:.1%}" if line.get("accuracy") is not None else ""
            return f"{where} held-out loss {style.number(line['loss'])}{right}, measured in {format_seconds(line['seconds'])}"
        case ledger.REORDERED:
            times = f"{format_seconds(line['from_step_s'])} to {format_seconds(line['step_s'])} a step, predicted"
            return f"{where} [cyan]the pipeline changes its schedule to {escape(line['name'])}[/]: {times}"
        case ledger.ORDER_TAKEN_UP:
            return f"{where} [cyan]the pipeline uses the schedule that is stored for its configuration[/]"
        case run_book.ADVISED:
            return f"{where} advice: [cyan]{escape(_after(line))}[/], {escape(line['reason'])}"
        case run_book.WITHDRAWN:
            return f"{where} advice: [cyan]stay[/]"
        case run_book.HELD_BACK:
            return f"{where} [yellow]{escape(_after(line))} is held back[/]: {escape(line['failure'])}"
        case run_book.LEFT_BADLY:
            return f"{where} [yellow]the trainer failed after it had left[/]: {escape(line['failure'])}; its checkpoint is complete"
        case run_book.PASSED_OVER:
            place, earlier = escape(line["place"]), escape(line["earlier"])
            return f"{where} [yellow]warning[/] no step was taken after resuming {place}; the run resumes {earlier}"
        case run_book.UNREADABLE:
            return (
                f"{where} [yellow]warning[/] the checkpoint {escape(line['place'])} is unreadable: an earlier one was resumed in its place"
            )
        case run_book.NOT_A_NUMBER:
            return f"{where} [yellow]warning[/] the trainer reports a loss that is not a number"
        case run_book.RECORDED:
            return f"{where} the trainer saved {escape(line['place'])}"
        case ledger.SAVED:
            return f"{where} saved in {format_seconds(line['seconds'])}"
        case _:
            return ""


def _after(line: Line) -> str:
    return _layout(Configuration.from_dict(line["after"]), line.get("local_batches", ()))


def _layout(configuration: Configuration, local_batches: Sequence[int] = ()) -> str:
    return f"{configuration.id}, {format_batch(configuration.global_batch, local_batches)}"


def _options_line(problem: "Problem") -> str:
    run_options = problem.run_options
    length = f"{run_options.samples:,} samples" if run_options.samples else "one epoch"
    warmup = f", warm-up over {run_options.warmup_samples:,}" if run_options.warmup_samples else ""
    decay = f", {run_options.decay} decay to {run_options.final_share:.0%}" if run_options.decay != "none" else ""
    return f"{length}{_learning_rate(problem)}{warmup}{decay}"


def _learning_rate(problem: "Problem") -> str:
    """Return how the learning rate follows the batch; its value only for the built-in trainer, because other trainers have their own."""
    batch, scaling = problem.run_options.reference_batch, problem.run_options.scaling
    rule = f" ({scaling} scaling)" if scaling != "none" else ""
    if problem.command is None:
        return f", learning rate {problem.training.learning_rate:g} at batch {batch}{rule}"
    return f", reference batch {batch}{rule}" if rule else ""
