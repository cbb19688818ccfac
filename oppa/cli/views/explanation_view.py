"""Print an explanation of a configuration as text."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from oppa.cli.views import style
from oppa.cli.views.breakdown_view import print_breakdown
from oppa.problem.selector import alternatives, violations
from oppa.units import format_bytes, with_noun

if TYPE_CHECKING:
    from oppa.problem.candidates import Candidates
    from oppa.problem.problem import Problem
    from oppa.problem.selector import Setting
    from oppa.study import Prediction
    from oppa.tuning.cost_breakdown import CostBreakdown
    from oppa.tuning.explanation import Explanation

_TITLE = 9
"""Width of the rows' titles."""
UNLIKELY = 0.05
"""Probability of fitting in memory below which a configuration is not expected to fit."""


def print_violations(text: str, asked: "Setting", problem: "Problem", candidates: "Candidates") -> None:
    """Print the constraints that a setting violates, and the values that are valid instead."""
    lines = [f"[bold]{escape(text)}[/] is [red]not valid[/]"]
    for each in violations(problem.space, asked):
        lines += ["", f"  {escape(each.why)}", f"  [cyan]{escape(each.rule)}[/]   here {escape(each.here)}"]
    others = alternatives(candidates, asked)
    none = "no change of one parameter makes it valid: `oppa space` lists valid configurations"
    lines += ["", "[bold]valid with one of these changes[/]" if others else none]
    lines += [f"  {name} = {escape(' or '.join(map(str, values)))}" for name, values in others.items()]
    style.out().print("\n".join(lines))


def print_explanation(known: "Explanation", costs: "CostBreakdown | None", text: str, matches: int, folder: Path | None) -> None:
    """Print an explanation and the parts of the configuration's cost.

    Args:
        text: The setting that was asked for, which `matches` configurations have.
        folder: Folder of the study, if there is one.
    """
    name = known.configuration.id
    among = "the only configuration" if matches == 1 else f"the best predicted of {matches}"
    rows = {
        "tried": _tried(known, folder),
        "logs": _logs(known, folder),
        "before": _before(known),
        "predicted": _predicted(known),
        "memory": _memory(known),
        "best": _best(known),
        "framework": _framework(costs) if costs else "",
    }
    head = f"[bold cyan]{name}[/]" + ("" if text == name else f"   {among} with {escape(text)}")
    style.out().print(f"{head}\n{_verdict(known)}\n")
    style.print_rows(style.out(), [f"[bold]{title:<{_TITLE}}[/]  {text}" for title, text in rows.items() if text], _TITLE + 2)
    if costs:
        print_breakdown(costs)


def _verdict(known: "Explanation") -> str:
    """Return the answer, in one line."""
    tried = known.tried
    if known.configuration == known.best:
        return f"it is the best {'measured' if known.best_measured else 'predicted'} configuration"
    if tried is not None and known.steps_per_s is None:
        return f"it was tried, and ended: [red]{tried.outcome.replace('_', ' ')}[/]"
    if tried is None and known.chance_of_fitting < UNLIKELY:
        return "it is not expected to [red]fit in memory[/]"
    share = f"[bold]{known.ratio:.2f}[/] times"
    if not known.objective.is_throughput:
        return f"it is {'' if tried else 'expected to be '}{share} as good as the best: {known.objective.better} is better"
    return f"it {'has' if tried else 'is expected to have'} {share} the throughput of the best"


def _tried(known: "Explanation", folder: Path | None) -> str:
    """Return what the trial measured, or how it failed."""
    tried = known.tried
    if tried is None:
        return "never" if folder else ""
    ended = f"trial {tried.id}, {style.outcome(tried.outcome)}"
    if tried.steps_per_s is None:
        return f"{ended}{f', rank {tried.rank}' if tried.rank is not None else ''}: {escape(tried.cause)}"
    times = with_noun(len(known.repeats), "repeat") if known.repeats else f"the mean of {known.trials} trials" if known.trials > 1 else ""
    sought, unit = known.objective, escape(known.objective.unit)
    repeated = f"; {style.objective(sought, known.steps_per_s)} {unit} in {times}" if times else ""
    measured = style.objective(sought, tried.steps_per_s, tried.stddev)
    return f"{ended}: {measured} {unit}, peak {style.memory(tried.memory_bytes)}{repeated}"


def _logs(known: "Explanation", folder: Path | None) -> str:
    """Return the folder with the logs of a trial that failed; empty if none did."""
    tried = known.tried
    failed = tried is not None and tried.steps_per_s is None
    return escape(str(folder / "trials" / tried.folder_name)) if failed and tried and folder else ""


def _before(known: "Explanation") -> str:
    """Return the prediction before the trial, and whether its interval contains the measurement."""
    tried = known.tried
    if tried is None or tried.prediction is None:
        return ""
    predicted = f"{_rate(known, tried.prediction)} predicted"
    if tried.steps_per_s is None:
        return predicted
    return f"{predicted}: the measurement lies {'within' if tried.prediction.covers(tried.steps_per_s) else '[yellow]outside[/]'}"


def _predicted(known: "Explanation") -> str:
    """Return the present prediction for a configuration without a measured throughput, else an empty text."""
    if known.steps_per_s is not None:
        return ""
    if known.tried is not None or known.configuration == known.best:
        return _rate(known, known.prediction)
    better = "faster" if known.objective.is_throughput else "better"
    return f"{_rate(known, known.prediction)}; {better} than the best: {_likely(known.chance_of_winning)}"


def _memory(known: "Explanation") -> str:
    """Return the predicted memory of a configuration without a measured throughput, and the usable memory."""
    if known.steps_per_s is not None or (interval := known.prediction.memory_interval) is None:
        return ""
    low, high = map(format_bytes, interval)
    predicted = (
        f"{format_bytes(known.prediction.memory_bytes or 0)} \\[{low} - {high}] predicted, {format_bytes(known.usable_bytes)} usable"
    )
    return predicted if known.tried is not None else f"{predicted}; fits: {_likely(known.chance_of_fitting)}"


def _best(known: "Explanation") -> str:
    """Return the best configuration, with which this one is compared; empty if it is the best."""
    if known.best == known.configuration:
        return ""
    rate = f"{style.objective(known.objective, known.best_steps_per_s)} {escape(known.objective.unit)}"
    return f"[cyan]{known.best.id}[/], {rate} {'measured' if known.best_measured else 'predicted'}"


def _framework(costs: "CostBreakdown") -> str:
    """Return the framework whose memory and communication the cost model assumes, and the precision."""
    return escape(f"{costs.framework.description} ({costs.framework_file}), in {costs.precision}")


def _rate(known: "Explanation", prediction: "Prediction") -> str:
    """Return what is predicted, in the unit of the objective, with its interval."""
    sought = known.objective
    low, high = map(style.number, sorted(map(sought.of, prediction.interval)))
    return f"{style.objective(sought, prediction.steps_per_s)} {escape(sought.unit)} \\[{low} - {high}]"


def _likely(chance: float) -> str:
    """Return a probability in words, never as 0% or 100%."""
    return f"{'less than 1%' if chance < 0.01 else 'more than 99%' if chance > 0.99 else f'{chance:.0%}'} likely"
