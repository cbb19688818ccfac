"""Draw an executed schedule as a figure: a row for each rank, a bar for each node."""

from collections.abc import Sequence

from oppa.pipeline.execution import Execution, Span
from oppa.pipeline.graph import KINDS
from oppa.report.plotting import Axes, Figure, Patch
from oppa.report.svg import POINTS_PER_INCH, STAND_INS, render

NAMES = ("forward", "backward", "weights' gradients")
COLOURS = ("blue", "orange", "green")
NUMBERED = 600
"""Largest number of bars at which each bar that is wide enough shows its micro-batch."""
DIGIT = 3.4
"""Width of a digit, in points."""
WIDTH, ROW = 9.0, 0.3
"""Width of the figure and height of a rank's row, in inches."""
FAINTER = 0.55
"""Opacity of later model chunks."""


def gantt(executed: Execution, *, description: str) -> str:
    """Return the figure as SVG; later model chunks are fainter."""
    spans = list(executed.spans())
    ranks = executed.schedule.shape.ranks

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for kind in KINDS[: 3 if executed.schedule.split else 2]:
            _bars(axes, [span for span in spans if span.action.kind == kind], executed, COLOURS[kind])
        for span in spans if len(spans) <= NUMBERED else ():
            text = str(span.action.micro_batch)
            if (span.end_s - span.start_s) / executed.makespan_s * WIDTH * POINTS_PER_INCH >= DIGIT * (len(text) + 1):
                place = ((span.start_s + span.end_s) / 2 * 1e3, span.rank)
                axes.annotate(text, place, ha="center", va="center", fontsize=5.5, color=STAND_INS["paper"])
        axes.set(xlabel="milliseconds", ylabel="rank", yticks=range(ranks), xlim=(0, executed.makespan_s * 1e3), ylim=(ranks - 0.5, -0.5))
        axes.grid(visible=False)
        keys = [Patch(color=STAND_INS[COLOURS[kind]], label=NAMES[kind]) for kind in KINDS[: 3 if executed.schedule.split else 2]]
        figure.legend(handles=keys, loc="outside upper left", ncols=len(keys))

    return render(draw, width=WIDTH, height=1.0 + ROW * ranks, description=description)


def _bars(axes: Axes, spans: Sequence[Span], executed: Execution, colour: str) -> None:
    shape = executed.schedule.shape
    for chunk in range(shape.chunks):
        for rank in range(shape.ranks):
            mine = [span for span in spans if span.rank == rank and span.action.stage // shape.ranks == chunk]
            widths = [(span.start_s * 1e3, (span.end_s - span.start_s) * 1e3) for span in mine]
            alpha = 1.0 if chunk == 0 else FAINTER
            axes.broken_barh(widths, (rank - 0.42, 0.84), color=STAND_INS[colour], alpha=alpha, edgecolor=STAND_INS["paper"], linewidth=0.3)
