"""Print the problem and the result of a study as text."""

import re
import statistics
from typing import TYPE_CHECKING

from rich.markup import escape

from oppa.cli.views import style
from oppa.study.records import SEARCH
from oppa.units import with_noun

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from oppa.problem.candidates import Candidates
    from oppa.problem.cluster import Cluster
    from oppa.problem.objective import Objective
    from oppa.problem.problem import Problem
    from oppa.study import Study, Trial
    from oppa.tuning.break_even import BreakEven
    from oppa.tuning.comparison import WinnerComparison
    from oppa.tuning.equivalence import Equivalence
    from oppa.tuning.expectation import Expectation
    from oppa.tuning.export_best import ExportedBest
    from oppa.tuning.spending import Spending
    from oppa.tuning.transfer import TransferredPrior
    from oppa.tuning.verification import Interval, SpeedUp


HEAD, RESULT = 7, 10
"""Width of the titles of a job's rows and of a result's, with the space after them."""
_HASH = re.compile(r"_[0-9a-f]{6}$")
"""The end of an id that encodes values which the id does not show."""


def print_problem(
    problem: "Problem",
    candidates: "Candidates",
    study: "Study",
    expected: "Expectation | None" = None,
    transfer: "TransferredPrior | None" = None,
    *,
    overestimates: bool = False,
) -> None:
    """Print the job, the space, the software of trials, the study, and what the search starts from and is expected to cost, to stderr.

    Args:
        overestimates: True if the job needs less memory than predicted.
    """
    from oppa.report.money import expected_lines

    done = sum(trial.purpose == SEARCH and trial.counts for trial in study.trials())
    so_far = f", {with_noun(done, 'trial')} done" if done else ""
    study_line = f"[bold]study[/]  {escape(str(study.folder))}{so_far}"
    money = _titled(expected_lines(expected, overestimates=overestimates)) if expected and not done else []
    lines = [problem_lines(problem, candidates), *transfer_lines(transfer), *money]
    style.print_rows(style.err(), [*lines, study_line, ""], HEAD)
    warn_of_unknown_device(problem.cluster)
    warn_if_it_does_not_pay(None if done else expected)


def transfer_lines(transfer: "TransferredPrior | None") -> list[str]:
    """Return a line for each study that a search starts from, or that it leaves out."""
    return _titled(transfer.lines) if transfer else []


def _titled(facts: "Iterable[tuple[str, str]]") -> list[str]:
    return [f"[bold]{name:<6}[/] {escape(text)}" for name, text in facts]


def warn_if_it_does_not_pay(expected: "Expectation | None") -> None:
    """Print a warning to stderr if the search is expected to cost more than the stated run gains."""
    from oppa.report.money import warning

    if expected and (text := warning(expected.break_even)):
        style.err().print(f"[yellow]warning[/]: {escape(text)}\n")


def problem_lines(problem: "Problem", candidates: "Candidates") -> str:
    """Return lines that describe the job, the space, and the software of trials."""
    from oppa.cost.beliefs import framework_of
    from oppa.problem.describe import changes, trace, unknown
    from oppa.tuning.routing import routing

    known = framework_of(problem).reads(candidates.space.names)
    titles = {"interpreter": "python", "launcher": "start"}
    started = [(titles.get(name, name), value) for name, value in problem.software.facts] if problem.software else []
    lines = [job_line(problem), f"[bold]space[/]  {with_noun(len(candidates), 'valid configuration')}"]
    lines += [f"[bold]model[/]  {escape(text)}"] if (text := trace(problem)) else []
    lines += [f"[bold]prior[/]  {escape(text)}"] if (text := unknown(problem, candidates, known)) else []
    lines += [f"[bold]routes[/] {escape(text)}"] if (text := routing(problem)) else []
    titled = [*started, *(("trials" if not number else "", text) for number, text in enumerate(changes(problem)))]
    return "\n".join([*lines, *_titled(titled)])


def warn_of_unknown_device(cluster: "Cluster") -> None:
    """Print a warning to stderr if the device catalogue lacks a job's device, and the job names no hardware file."""
    from oppa.problem.devices import unknown_device

    if not cluster.hardware and (warning := unknown_device(cluster.device, cluster.usable_bytes)):
        style.err().print(f"[yellow]warning[/]: {escape(warning)}\n")


def traced_and_shown(problem: "Problem") -> "Problem":
    """Return the problem with the trace of its own module, which is described on stderr; without a module, the problem itself."""
    if problem.stated_model is None or not problem.stated_model.is_traceable:
        return problem
    if problem.trace is None:
        from oppa.training.tracing.trace import traced

        with style.err().status("tracing the model"):
            problem = traced(problem)
    show_trace(problem)
    return problem


def show_trace(problem: "Problem") -> None:
    """Describe the trace of a problem's module on stderr, if it has one."""
    from oppa.problem.describe import trace

    if text := trace(problem):
        style.print_rows(style.err(), [f"[bold]model[/]  {escape(text)}"], HEAD)


def job_line(problem: "Problem") -> str:
    """Return a line that describes the model, the batch and the devices of a job."""
    from oppa.problem.describe import job

    return f"[bold]job[/]    {escape(problem.name)}: {job(problem)}"


def print_result(
    result: "WinnerComparison",
    learned: "Equivalence | None",
    *,
    why_ended: str = "",
    exported: "ExportedBest | None" = None,
    objective: "Objective",
    break_even: "BreakEven | None" = None,
    spent: "Spending | None" = None,
    console: "Console | None" = None,
) -> None:
    """Print the winner, its comparisons, its cost, its equivalence with the reference, and its script; to stderr without `console`."""
    from oppa.report.money import pays_lines
    from oppa.report.words import equivalent
    from oppa.tuning.spending import spent_in_words

    lines = [f"\n{why_ended}" if why_ended else "", *_contenders(result, objective), *_comparisons(result, objective)]
    lines += [_row("spent", escape(spent_in_words(spent)))] if spent else []
    lines += [_row(name, escape(text)) for name, text in (pays_lines(break_even) if break_even else [])]
    lines += [_row("learns", equivalent(learned, result))] if learned else []
    lines += _exported(exported) if exported else []
    style.print_rows(console or style.err(), lines, RESULT)


def _row(name: str, text: str) -> str:
    """Return a row of the result."""
    return f"[bold]{name:<{RESULT - 1}}[/] {text}"


def _exported(exported: "ExportedBest") -> list[str]:
    """Return lines with the script that runs the winner, and with the formats that it was exported to."""
    run = [_row("run it", escape(str(exported.script)))] if exported.script else []
    if not exported.exported and not exported.refused:
        return run
    readme = escape(str(exported.folder / "README.md"))
    others = f"; not {', '.join(exported.refused)}, for the reasons in {readme}" if exported.refused else f": {readme}"
    return [*run, _row("export", f"{', '.join(exported.exported) or 'nothing'}{others}")]


def _contenders(result: "WinnerComparison", objective: "Objective") -> list[str]:
    """Return a line in columns for each of the winner, the runner-up and the reference."""
    best, runner_up, reference = result.best, _runner_up(result), result.reference
    speed_up, margin = result.speed_up, result.margin
    compared = speed_up or margin
    rows = [("winner", best, compared.winner if compared else None)]
    if runner_up is not None:
        rows += [("runner-up", runner_up, margin.other if margin else None)]
    if reference is not None and reference.configuration != best.configuration:
        rows += [(result.reference_kind, reference, speed_up.other if speed_up else None)]
    cells = [
        (trial.configuration.id, *_speed(trial, result, interval, objective), style.memory(trial.memory_bytes))
        for _, trial, interval in rows
    ]
    id_, value, spread, _ = (max(map(len, column)) for column in zip(*cells, strict=True))
    lines = [
        _row(name, f"[cyan]{cell[0]:<{id_}}[/]   {cell[1]:>{value}} {escape(objective.unit)}{cell[2]:<{spread}}   peak {cell[3]}")
        for (name, *_), cell in zip(rows, cells, strict=True)
    ]
    return [*lines, *_hidden(best, rows[1:])]


def _hidden(best: "Trial", others: "Sequence[tuple[str, Trial, Interval | None]]") -> list[str]:
    """Return a line for each configuration whose id differs from the winner's by its hash alone: the values that differ."""
    lines = []
    for name, other, _ in others:
        if _HASH.sub("", other.configuration.id) == _HASH.sub("", best.configuration.id):
            ours, theirs = best.configuration.to_dict(), other.configuration.to_dict()
            changes = [f"{key} {value} -> {theirs.get(key)}" for key, value in ours.items() if theirs.get(key) != value]
            lines.append(_row("", f"winner -> {name}: {escape(' · '.join(changes))}"))
    return lines


def _comparisons(result: "WinnerComparison", objective: "Objective") -> list[str]:
    """Return the winner's margin over the runner-up, and its speed-up over the reference."""
    from oppa.tuning.verify.verdict import words_of

    words = words_of(objective)
    gain = words["gain"]
    margin = [_compared("margin", result, result.margin)] if result.margin and _runner_up(result) else []
    before = [*_failure(result), *margin]
    if result.reference is None:
        return [*before, _row(gain, "unknown: no default configuration that fits was measured")]
    if result.reference.configuration == result.best.configuration:
        why = f"no trial is {words['faster']} than {result.reference_in_words}" if result.runner_up else _alone(result)
        return [*before, _row(gain, f"none: {why}")]
    keep = [_row("advice", f"keep the baseline: it is {words['as_fast']} as the winner, within the error of the measurement")]
    return [*before, _compared(gain, result, result.speed_up), *(keep if result.keeps_baseline else [])]


def _alone(result: "WinnerComparison") -> str:
    """Return that nothing was compared, and which trials settle the throughput."""
    count = len(result.repeats_of(result.best))
    return "no other configuration was measured" + (f"; {with_noun(count, 'repeat')} of it settle its own figure" if count > 1 else "")


def _failure(result: "WinnerComparison") -> list[str]:
    """Return how the baseline failed, and what replaces it; empty if it did not fail."""
    failed = result.failure
    if failed is None:
        return []
    ended = f"{style.outcome(failed.outcome)} in trial {failed.id}"
    return [_row("baseline", f"[cyan]{failed.configuration.id}[/]   {ended}; the default is the reference instead")]


def _runner_up(result: "WinnerComparison") -> "Trial | None":
    """Return the runner-up; None if there is none, or it is the reference."""
    second, reference = result.runner_up, result.reference
    return None if second and reference and second.configuration == reference.configuration else second


def _compared(name: str, result: "WinnerComparison", speed_up: "SpeedUp | None") -> str:
    if speed_up is None:
        return _row(name, "not verified yet; `oppa tune` with this study runs the repeats, within its limits")
    verdict = "[yellow]tied[/]: the 95% interval contains 1" if speed_up.tied else "the 95% interval excludes 1"
    ratio = f"[green]{speed_up.ratio.value:.2f}x[/] [{speed_up.ratio.low:.2f} - {speed_up.ratio.high:.2f}]"
    return _row(name, f"{ratio}, {len(result.repeats_of(result.best))} interleaved repeats each; {verdict}")


def _speed(trial: "Trial", result: "WinnerComparison", interval: "Interval | None", objective: "Objective") -> tuple[str, str]:
    """Return the objective of the repeats, and its interval; without repeats, that of the trial."""
    if interval:
        low, high = sorted(map(objective.of, (interval.low, interval.high)))
        return style.objective(objective, interval.value), f" [{style.number(low)} - {style.number(high)}]"
    rates = [repeat.steps_per_s for repeat in result.repeats_of(trial) if repeat.steps_per_s]
    return style.objective(objective, statistics.geometric_mean(rates) if rates else trial.steps_per_s), ""
