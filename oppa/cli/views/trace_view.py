"""Print what `oppa cluster simulate` and `generate` make of a trace of jobs."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from oppa.cli.views import style
from oppa.report.record import Section
from oppa.units import format_seconds

if TYPE_CHECKING:
    from oppa.cluster.comparison import PolicyRow, QueueingTimes, SharedCluster
    from oppa.cluster.generator import TraceProfile
    from oppa.cluster.job import TraceJob
    from oppa.cluster.result import Result


def policy_json(row: "PolicyRow", none: "PolicyRow") -> dict[str, Any]:
    """Return the row of a policy as JSON values, with its ratios to the row without scaling."""
    ratios = {"completion_ratio": _ratio(row.completion_s, none.completion_s), "queue_ratio": _ratio(row.queue_s, none.queue_s)}
    return {**dataclasses.asdict(row), **ratios}


def _ratio(value: float, reference: float) -> float:
    return value / reference if reference else 1.0


def print_policies(rows: "Sequence[PolicyRow]", jobs: "Sequence[TraceJob]", shared: "SharedCluster") -> None:
    """Print what each policy makes of a trace; the first row is that without scaling."""
    none = rows[0]
    shown = Section(
        title="Elastic jobs on a shared cluster",
        text=f"{len(jobs):,} jobs on {shared.gpus:,} GPUs, {none.elastic:,} of them elastic. Times are means; shares are of those "
        "without scaling. Extra: share of all GPU time that elastic jobs hold beyond their requests.",
        columns=("policy", ">elastic completion", ">share", ">others' queueing", ">share", ">changes", ">utilisation", ">extra"),
        rows=[
            (
                row.policy,
                format_seconds(row.completion_s),
                f"{_ratio(row.completion_s, none.completion_s):.3f}",
                format_seconds(row.queue_s),
                f"{_ratio(row.queue_s, none.queue_s):.3f}",
                f"{row.changes:,}",
                f"{row.utilisation:.1%}",
                f"{row.spare_gpu_s / (shared.gpus * max(row.until_s, 1)):.1%}",
            )
            for row in rows
        ],
    )
    style.print_section(shown)


def print_queues(found: "Sequence[QueueingTimes]", result: "Result", known: "TraceProfile", days: float) -> None:
    """Print the queueing times of a generated trace of so many days, and the published ones."""
    utilisation = result.usage.share(days * 86_400)
    shown = Section(
        title=f"A trace like {known.name}",
        text=f"Utilisation of {known.gpus:,} GPUs over {days:g} days: {utilisation:.1%}. In order of arrival, jobs wait "
        f"{format_seconds(result.queue_s(()))} on average, published {format_seconds(known.queue_s)}. Columns: share of jobs "
        "that wait at most 1 s, 1 min and 1 h, simulated and published. The generator matches only the mean.",
        columns=("type", ">jobs", ">mean wait", ">1 s", ">published", ">1 min", ">published", ">1 h", ">published"),
        rows=[
            (
                each.kind,
                f"{each.jobs:,}",
                "" if each.mean_s is None else format_seconds(each.mean_s),
                *_queued(each),
            )
            for each in found
        ],
    )
    style.print_section(shown)


def _queued(times: "QueueingTimes") -> list[str]:
    """Return the cells of shares, each next to the published one; the former are empty without jobs."""
    simulated = [""] * len(times.published) if times.shares is None else [f"{share:.1%}" for share in times.shares]
    return [cell for own, published in zip(simulated, times.published, strict=True) for cell in (own, f"{published:.1%}")]
