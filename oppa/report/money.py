"""Describe in words what a search costs, and from which length of run it pays."""

import math
from typing import TYPE_CHECKING

from oppa.problem.problem import Problem
from oppa.tuning.break_even import REFERENCES, BreakEven
from oppa.tuning.device_budget import CONTENDERS, total_s
from oppa.tuning.spending import gpu_hours, in_words, priced, unit
from oppa.tuning.verification import Interval
from oppa.units import format_bytes, format_hours, format_seconds, with_noun

if TYPE_CHECKING:  # it loads torch
    from oppa.tuning.expectation import Expectation

LIKELY = 0.5
"""Probability from which a time limit counts as too short."""


def expected_lines(expected: "Expectation", *, overestimates: bool = False) -> list[tuple[str, str]]:
    """Return lines by name: the expected cost of a search, the expected speed-up, and the run for which it pays.

    Args:
        overestimates: True if the job needs less memory than predicted, so that it may fit all the same.
    """
    known, (least_s, most_s) = expected.break_even, expected.startup_s
    if not expected.fitting and not overestimates:
        usable = format_bytes(expected.usable_bytes)
        return [
            ("fits", f"no configuration is predicted to fit: the least needs {format_bytes(expected.least_bytes)}, and {usable} is usable")
        ]
    trials = f"{with_noun(expected.trials, 'trial')} and {with_noun(expected.repeats, 'repeat')}"
    starts = f"{with_noun(expected.trials + expected.repeats, 'start')}, if one takes {format_seconds(least_s)} to {format_seconds(most_s)}"
    lines = [
        ("cost", f"{_hours_in_words(known, known.search_s)}: {trials}"),
        ("starts", f"{_hours_in_words(known, expected.starting_s)} of it: {starts}"),
    ]
    if expected.too_short >= LIKELY:
        steps, limit = known.limits.settle + known.limits.q_min, format_seconds(known.limits.trial_time_s)
        needed = f"a start and {steps} steps of {REFERENCES[known.reference]}"
        late = f"{needed} take longer with a probability of {expected.too_short:.0%}"
        lines.append(("time", f"a trial has {limit}, but {late}; raise `limits.trial_time`"))
    if (gain := known.speed_up) is None or not expected.fitting:
        return lines
    interval = f"[{gain.low:.2f} - {gain.high:.2f}]"
    lines.append(("speed", f"{gain.value:.2f}x {interval} over {REFERENCES[known.reference]}, by the prior"))
    return [*lines, *pays_lines(known)]


def most_lines(problem: Problem, configurations: int) -> list[tuple[str, str]]:
    """Return a line with the cost of a search whose every trial takes its whole time, for a job without a prediction."""
    limits = problem.limits
    trials, contenders = min(configurations, limits.trials or configurations), min(configurations, CONTENDERS)
    repeats = contenders * limits.repeats
    seconds = min((trials + repeats) * limits.trial_time_s, total_s(problem) or math.inf)
    counted = f"{with_noun(trials, 'trial')} and {with_noun(repeats, 'repeat')} of up to {format_seconds(limits.trial_time_s)}"
    return [("cost", f"up to {in_words(problem.cluster, limits, seconds)}: {counted}")]


def _hours_in_words(known: BreakEven, seconds: Interval) -> str:
    """Return the hours of all devices, their interval and their price as text."""
    hours, *ends = (gpu_hours(known.cluster, each) for each in (seconds.value, seconds.low, seconds.high))
    low, high = map(format_hours, ends)
    return f"{format_hours(hours)} {unit(known.cluster)}{f' [{low} - {high}]' if low != high else ''}{priced(known.limits, hours)}"


def pays_lines(known: BreakEven) -> list[tuple[str, str]]:
    """Return lines by name: the length of run from which a search pays, and the net gain of the stated run."""
    lines = []
    if (after := known.pays_after_s) is not None:
        lines.append(("pays", pays(after)))
    if known.net_s is not None and known.run_s is not None:
        lines.append(("net", net(known)))
    return lines


def pays(after: Interval) -> str:
    """Return from which length of run a search pays, as text."""
    if math.isinf(after.value):
        return "for no run: the winner is not faster"
    interval = "" if after.low == after.high else f" [{_long(after.low)} - {_long(after.high)}]"
    return f"for runs longer than {format_seconds(after.value)}{interval}"


def net(known: BreakEven) -> str:
    """Return the net gain of the stated run as text: time, hours of devices, and money."""
    assert known.net_s is not None and known.run_s is not None
    amount = known.net_s
    hours = gpu_hours(known.cluster, abs(amount.value))
    verb, sign = ("saves", 1) if amount.value >= 0 else ("loses", -1)
    low, high = (_signed(gpu_hours(known.cluster, each)) for each in sorted((sign * amount.low, sign * amount.high)))
    interval = "" if amount.low == amount.high else f" [{low} - {high}]"
    time = f"{format_seconds(abs(amount.value))} in a run of {format_seconds(known.run_s)}"
    return f"{verb} {time}: {format_hours(hours)} {unit(known.cluster)}{interval}{priced(known.limits, hours)}"


def warning(known: BreakEven) -> str:
    """Return a warning that the search does not pay for the stated run; empty if it pays, or if that is unknown."""
    if known.pays is not False or known.run_s is None or known.pays_after_s is None:
        return ""
    return f"the search does not pay: a run of {format_seconds(known.run_s)} is too short. It pays {pays(known.pays_after_s)}"


def pays_sentences(known: BreakEven) -> list[str]:
    """Return sentences for a page: the length of run from which the search pays, and the net gain of the stated run."""
    sentences = []
    if (after := known.pays_after_s) is not None:
        in_time_of = f", in time of {REFERENCES[known.reference]}" if math.isfinite(after.value) else ""
        sentences.append(f"The search pays {pays(after)}{in_time_of}.")
    if known.net_s is not None and known.run_s is not None:
        sentences.append(f"After its cost, the search {net(known)}.")
    return sentences


def _signed(hours: float) -> str:
    return f"{'-' if hours < 0 else ''}{format_hours(abs(hours))}"


def _long(seconds: float) -> str:
    return "never" if math.isinf(seconds) else format_seconds(seconds)
