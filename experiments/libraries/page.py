"""Show what was found of each library, as tables."""

from collections.abc import Sequence

from experiments.libraries.run import CONTENDS, EVERY_ROUNDS, Found
from oppa.report.record import Section

CLOSE = 0.03
"""Largest difference from the fastest configuration of a winner that counts as found."""
NOTHING = "-"


def sections(found: Sequence[Found]) -> list[Section]:
    """Return the tables of the record."""
    text = (
        "Each line is tuned without a job file, in a folder with canaries: files that trials must not change."
        f" Then every configuration runs by hand, in turn: {EVERY_ROUNDS} times, and those up to {CONTENDS:g} times as slow as the fastest"
        f" more often. A winner counts as found within {CLOSE:.0%} of the fastest."
    )
    rows = [
        (
            each.name,
            len(each.step_times_s),
            f"{each.trials} ({each.failed} failed)",
            f"{len(each.changed)} changed" if each.changed else "unchanged",
            "yes" if each.line_runs else "no",
            NOTHING if each.speed_up is None else f"{each.speed_up:.2f}x",
            NOTHING if each.loss is None else f"{each.loss:+.1%}",
            NOTHING if each.loss is None else "yes" if each.loss <= CLOSE else "no",
        )
        for each in found
    ]
    columns = ("library", ">configurations", ">trials", "canaries", "printed line runs", ">speed-up by hand", ">slower than best", "found")
    return [Section(title="Winners and canaries", text=text, columns=columns, rows=rows), *map(_by_hand, found)]


def _by_hand(found: Found) -> Section:
    """Return the runs of one library, the fastest configuration first."""
    medians = found.medians_s
    names = sorted(found.step_times_s, key=lambda name: medians.get(name, float("inf")))
    marks = {found.winner: "winner", found.baseline: "baseline"} if found.winner != found.baseline else {found.winner: "winner, baseline"}
    rows = [(name, marks.get(name, ""), *_times(found.step_times_s[name], medians.get(name))) for name in names]
    origin = "; ".join(filter(None, (found.measured, ", ".join(f"{name} {version}" for name, version in found.versions.items()))))
    text = f"Milliseconds of a step: the median, the least and the most of all runs, each of which counts by its median. {origin}".strip()
    return Section(
        title=f"Runs of {found.name} by hand",
        text=text,
        columns=("configuration", "", ">median", ">least", ">most", ">failed"),
        rows=rows,
    )


def _times(times: Sequence[float | None], median: float | None) -> tuple[str, str, str, int]:
    ran = [each for each in times if each is not None]
    shown = [NOTHING if each is None else f"{1e3 * each:.2f}" for each in (median, min(ran, default=None), max(ran, default=None))]
    return shown[0], shown[1], shown[2], len(times) - len(ran)
