"""Score a comparison: how soon each designer came within 5% of the best, and how its incumbent improved.

Notation (T trials):
    best_at     true throughput of the incumbent over the task's best, after each trial; 0 before a feasible one    (T,)
    to_95       the first trial after which that is at least 0.95, or the seconds until the trial ended;
                T + 1, or the seconds of the longest search of the task, if it never is
    net gain    seconds that a training run of RUN_S, if untuned, saves with the last incumbent, minus the seconds of the search
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from oppa.bench.run_designer import RUN_S
from oppa.bench.runs import PER_TRIAL, RAN, SearchRun

NEAR = 0.95
OURS = ("oppa", "oppa-paper", "oppa-no-prior", "oppa-no-early-stop")
"""Variants of this project's designer, which do not count as peers."""


def best_at(run: SearchRun, trials: int) -> list[float]:
    """Return the incumbent's share of the best after each of `trials`; a designer that ended earlier keeps its incumbent."""
    last = run.best_at[-1] if run.best_at else 0.0
    return [*run.best_at[:trials], *[last] * (trials - len(run.best_at))]


def trials_to(run: SearchRun, trials: int) -> int:
    """Return the first trial after which the incumbent reaches 95% of the best, or `trials` + 1 if it never does."""
    return next((k for k, value in enumerate(run.best_at[:trials], 1) if value >= NEAR), trials + 1)


def longest_s(runs: Iterable[SearchRun], trials: int) -> dict[str, float]:
    """Return the seconds of the longest search of each task."""
    longest: dict[str, float] = {}
    for run in runs:
        longest[run.task] = max(longest.get(run.task, 0.0), *run.seconds[:trials][-1:], 0.0)
    return longest


def seconds_to(run: SearchRun, trials: int, longest: Mapping[str, float]) -> float:
    """Return the seconds until the incumbent reached 95%; a run that never does counts as the longest search of its task.

    Its own seconds would reward a search whose trials fail early. The longest search makes it no faster than any run that reaches 95%.

    Args:
        longest: Seconds of the longest search of each task among the designers that are compared (`longest_s`).
    """
    reached = trials_to(run, trials)
    return run.seconds[reached - 1] if reached <= trials else longest[run.task]


def best_after(run: SearchRun, seconds: float) -> float:
    """Return the incumbent's share of the best after this number of seconds."""
    ended = [value for value, end in zip(run.best_at, run.seconds, strict=True) if end <= seconds]
    return ended[-1] if ended else 0.0


def untuned(runs: Iterable[SearchRun]) -> dict[str, float]:
    """Return the throughput of an untuned job by task, as a share of the best.

    An untuned job runs with the user's baseline, or else the framework's default. Where that does not run, or the log lacks it, it runs
    with the first feasible configuration of `random`. The value is then the median over its runs.
    """
    runs = list(runs)
    recorded = {run.task: run.untuned for run in runs if run.untuned is not None}
    firsts: dict[str, list[float]] = {}
    for run in runs:
        if run.designer == "random":
            firsts.setdefault(run.task, []).append(next((share for share in run.best_at if share > 0), 0.0))
    return {task: statistics.median(shares) for task, shares in firsts.items()} | recorded


def break_even_s(run: SearchRun, tuned_s: float, share: float) -> float:
    """Return the second at which tuning for `tuned_s` and then training overtakes training at `share` from the start; inf if never."""
    best, best_s = best_after(run, tuned_s), min([tuned_s, *run.seconds[-1:]])
    return best * best_s / (best - share) if best > share else math.inf


def summary(runs: Iterable[SearchRun], trials: int, longest: Mapping[str, float]) -> dict[str, float | None]:
    """Return the scores of one designer over tasks and seeds; None after more than `trials`. `longest` is that of `seconds_to`."""
    runs = list(runs)
    rises = np.array([best_at(run, trials) for run in runs])
    reached = sorted(trials_to(run, trials) for run in runs)
    return {
        **{f"best_at_{k}": float(rises[:, k - 1].mean()) if k <= trials else None for k in (5, 10, 20)},
        "trials_to_95_median": statistics.median(reached),
        "trials_to_95_p90": float(np.quantile(reached, 0.9, method="higher")),
        "seconds_to_95_median": statistics.median(seconds_to(run, trials, longest) for run in runs),
        "seconds_per_suggestion": sum(run.thinking_s for run in runs) / max(1, sum(len(run.outcomes) for run in runs)),
    }


def until_it_pays(run: SearchRun) -> SearchRun:
    """Return the run up to the first trial that was not expected to pay; the whole run of a designer that states no expectation."""
    if run.paying is None or run.paying >= len(run.outcomes):
        return run
    return dataclasses.replace(run, **{name: getattr(run, name)[: run.paying] for name in PER_TRIAL})


def net_gain_s(run: SearchRun, share: float) -> float:
    """Return the net gain of a search over an untuned job whose throughput is `share` of the best, in seconds.

    A search without an incumbent saves nothing, and costs its seconds.
    """
    best, spent_s = (run.best_at[-1], run.seconds[-1]) if run.seconds else (0.0, 0.0)
    return (RUN_S * (1 - share / best) if best else 0.0) - spent_s


def not_run(run: SearchRun) -> int:
    """Return the number of trials that ran out of memory, or failed where a table does not distinguish them."""
    return sum(outcome not in RAN for outcome in run.outcomes)


def user_scores(runs: Iterable[SearchRun], start: Mapping[str, float]) -> dict[str, float | None]:
    """Return what one designer costs and gains a user, over tasks and seeds.

    The share `first_fits` is over the first trials that the designer chose: it leaves out baselines, and searches without other trials.

    Args:
        start: Throughput of the untuned job by task; without that of any task, the net gains are None.
    """
    runs = list(runs)
    gains: dict[str, list[float]] = {}
    for run in runs:
        if start.get(run.task):
            gains.setdefault(run.task, []).append(net_gain_s(run, start[run.task]))
    every = [gain for group in gains.values() for gain in group]
    firsts = [run.outcomes[run.baselines] for run in runs if len(run.outcomes) > run.baselines]
    return {
        "net_gain_s_median": statistics.median(every) if every else None,
        "net_gain_s_p10": float(np.quantile(every, 0.1)) if every else None,
        "net_gain_s_worst_task": min(map(statistics.median, gains.values())) if every else None,
        "out_of_memory_median": statistics.median(map(not_run, runs)),
        "first_fits": statistics.mean(first in RAN for first in firsts) if firsts else None,
    }


def ratio(runs: Sequence[SearchRun], designer: str, peer: str, trials: int) -> float:
    """Return a designer's median seconds to 95% over the peer's, in the geometric mean over the tasks of both; NaN if there are none.

    The longest search of a task is that of one of these two designers, so that others do not change their ratio.
    """
    longest = longest_s((run for run in runs if run.designer in (designer, peer)), trials)
    ours, theirs = (_medians(runs, name, trials, longest) for name in (designer, peer))
    logs = [math.log(ours[task] / theirs[task]) for task in ours if task in theirs]
    return math.exp(statistics.mean(logs)) if logs else math.nan


def best_peer(runs: Sequence[SearchRun], trials: int) -> tuple[str, float] | None:
    """Return the peer with the highest ratio of `oppa`'s seconds to its own, and that ratio; None without `oppa` or without peers.

    A peer has runs on every task of `oppa`: an interrupted comparison has others, which would be judged by their easiest tasks.
    """
    tasks = {name: {run.task for run in group} for name, group in grouped(runs).items()}
    complete = [name for name, known in tasks.items() if name not in OURS and "oppa" in tasks and known >= tasks["oppa"]]
    peers = {name: ratio(runs, "oppa", name, trials) for name in sorted(complete)}
    return max(peers.items(), key=lambda each: each[1]) if peers else None


def to_json(runs: Sequence[SearchRun], apart: Sequence[SearchRun], trials: int, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the whole comparison: `designers` and `ratio_to_best_peer` over `runs` alone, `tasks` over all runs."""
    peer = best_peer(runs or apart, trials)
    return {
        "designers": _summaries(runs or apart, trials),
        "ratio_to_best_peer": peer and peer[1],
        "best_peer": peer and peer[0],
        "apart": _summaries(apart, trials) if runs else {},
        "tasks": {task: _task([run for run in (*runs, *apart) if run.task == task], trials) for task in _names([*runs, *apart])},
        "environment": dict(environment),
    }


def grouped(runs: Iterable[SearchRun]) -> dict[str, list[SearchRun]]:
    """Return the runs by designer, in order of first appearance."""
    groups: dict[str, list[SearchRun]] = {}
    for run in runs:
        groups.setdefault(run.designer, []).append(run)
    return groups


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key that puts `8B-2` before `8B-16`."""
    pieces = ("".join(group) for _, group in itertools.groupby(name, str.isdigit))
    return tuple((int(piece), "") if piece.isdigit() else (0, piece) for piece in pieces)


def _summaries(runs: Sequence[SearchRun], trials: int) -> dict[str, dict[str, float | None]]:
    start, longest = untuned(runs), longest_s(runs, trials)
    return {
        designer: {**summary(group, trials, longest), **user_scores(group, start), **_ended(user_scores(map(until_it_pays, group), start))}
        for designer, group in grouped(runs).items()
    }


def _ended(scores: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the scores of searches that end when a trial does not pay, under names of their own."""
    return {f"{name}_until_it_pays": value for name, value in scores.items() if name != "first_fits"}


def _task(runs: Sequence[SearchRun], trials: int) -> dict[str, dict[str, Any]]:
    longest = longest_s(runs, trials)
    return {
        designer: {
            "best_at": [best_at(run, trials) for run in group],
            "trials_to_95": [trials_to(run, trials) for run in group],
            "seconds_to_95": [seconds_to(run, trials, longest) for run in group],
        }
        for designer, group in grouped(runs).items()
    }


def _names(runs: Iterable[SearchRun]) -> list[str]:
    return list(dict.fromkeys(run.task for run in runs))


def _medians(runs: Iterable[SearchRun], designer: str, trials: int, longest: Mapping[str, float]) -> dict[str, float]:
    tasks: dict[str, list[float]] = {}
    for run in runs:
        if run.designer == designer:
            tasks.setdefault(run.task, []).append(seconds_to(run, trials, longest))
    return {task: statistics.median(seconds) for task, seconds in tasks.items()}
