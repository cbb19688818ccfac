"""Show the comparisons: each of them, and medians by kind of task against the bars."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.proxy.run import TRIALS, TwoSizeComparison
from experiments.proxy.tasks import HOSTS
from oppa.report.record import Section
from oppa.tuning.proxy.budget import smaller_trials
from oppa.tuning.proxy.upward import VERIFIED

REGRET, SHARE = 0.02, 0.15
"""Largest regret, and largest share of the plain search's GPU-hours, that a search in two sizes should have."""
FIGURES: Mapping[str, Callable[[TwoSizeComparison], float]] = {
    "regret": lambda each: each.regret,
    "share": lambda each: each.share,
    "plain_regret": lambda each: each.plain_regret,
    "plain_regret_at_same": lambda each: each.plain_regret_at_same,
    "share_of_exhaustive": lambda each: sum(each.gpu_hours) / each.exhaustive_gpu_hours,
}


def sections(found: Sequence[TwoSizeComparison]) -> list[Section]:
    """Return the summary by kind of task, and every comparison."""
    return [_summary(found), _each(found)]


def to_json(found: Sequence[TwoSizeComparison]) -> dict[str, Any]:
    """Return the figures as JSON values: medians with quartiles by kind of task, and every comparison."""
    return {
        "bars": {"regret": REGRET, "share": SHARE},
        "kinds": {kind: _figures(some) for kind, some in _kinds(found).items()},
        "comparisons": [each.to_dict() for each in found],
    }


def _kinds(found: Sequence[TwoSizeComparison]) -> dict[str, list[TwoSizeComparison]]:
    simulated = [each for each in found if each.task in HOSTS]
    measured = [each for each in found if each.task not in HOSTS]
    return {kind: some for kind, some in (("simulated", simulated), ("nanotron", measured), ("all", [*found])) if some}


def _figures(some: Sequence[TwoSizeComparison]) -> dict[str, Any]:
    quartiles = {name: dict(zip(("low", "median", "high"), _quartiles(some, of), strict=True)) for name, of in FIGURES.items()}
    return {
        **quartiles,
        "worst_regret": max(each.regret for each in some),
        "runs": len(some),
        "within_regret": sum(each.regret <= REGRET for each in some),
        "within_share": sum(each.share <= SHARE for each in some),
        "within_both": sum(each.regret <= REGRET and each.share <= SHARE for each in some),
        "better_than_plain_at_same": sum(each.regret < each.plain_regret_at_same for each in some),
        "worse_than_plain_at_same": sum(each.regret > each.plain_regret_at_same for each in some),
    }


def _quartiles(some: Sequence[TwoSizeComparison], of: Callable[[TwoSizeComparison], float]) -> list[float]:
    return [float(each) for each in np.quantile([of(each) for each in some], (0.25, 0.5, 0.75))]


def _summary(found: Sequence[TwoSizeComparison]) -> Section:
    rows = []
    for kind, some in _kinds(found).items():
        figures = _figures(some)
        rows.append(
            (
                kind,
                figures["runs"],
                *(_spread(figures[name]) for name in FIGURES),
                f"{figures['worst_regret']:.1%}",
                *(figures[f"within_{name}"] for name in ("regret", "share", "both")),
                f"{figures['better_than_plain_at_same']} / {figures['worse_than_plain_at_same']}",
            )
        )
    text = (
        f"Medians with quartiles over tasks and seeds. The plain search has {TRIALS} trials, that at the smaller size "
        f"{smaller_trials(TRIALS)}. "
        f"{VERIFIED} configurations run at full size. Regret is the loss of true throughput against the full-size best. Shares are of the "
        "plain search's GPU-hours, and of a complete trial of every configuration. Runs are counted within the bars: a regret of "
        f"{REGRET:.0%}, a share of {SHARE:.0%}, and both. The last column counts the runs in which the search in two sizes has a smaller "
        "and a larger regret than the plain one at the same GPU-hours."
    )
    columns = (
        *("tasks", ">runs", ">regret", ">share", ">plain regret", ">plain at the same hours", ">of exhaustive", ">worst regret"),
        *(f">within {REGRET:.0%}", f">within {SHARE:.0%}", ">both", ">better / worse"),
    )
    return Section(title="A search in two sizes, compared with a plain one", text=text, columns=columns, rows=rows)


def _spread(figure: Mapping[str, float]) -> str:
    return f"{figure['median']:.1%} ({figure['low']:.1%} - {figure['high']:.1%})"


def _each(found: Sequence[TwoSizeComparison]) -> Section:
    rows = [
        (
            each.task,
            each.seed,
            f"{each.hosts[1]} of {each.hosts[0]}",
            f"{each.layers[1]} of {each.layers[0]}",
            f"{each.matched:.0%}",
            f"{each.regret:.1%}",
            f"{each.first_regret:.1%}",
            each.failed,
            f"{each.gpu_hours[0]:.1f} + {each.gpu_hours[1]:.1f}",
            f"{each.plain_gpu_hours:.1f}",
            f"{each.share:.1%}",
            f"{each.plain_regret:.1%}",
            f"{each.plain_regret_at_same:.1%}",
        )
        for each in found
    ]
    columns = (
        *("task", ">seed", ">hosts", ">layers", ">shown", ">regret", ">after one", ">failed", ">GPU-hours", ">plain", ">share"),
        *(">plain regret", ">at the same hours"),
    )
    text = (
        "`shown` is the share of configurations that have a stand-in at the smaller size. `after one` is the regret after the first trial "
        "at full size, and 100% if it measured nothing. GPU-hours are those of the smaller and of the full size."
    )
    return Section(title="Every run", text=text, columns=columns, rows=rows)
