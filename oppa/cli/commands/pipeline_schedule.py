"""`oppa pipeline-schedule`: find a pipeline schedule for measured times and a memory limit."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oppa.errors import InputError

if TYPE_CHECKING:
    from oppa.pipeline.costs import Costs
    from oppa.pipeline.search.joint import SearchedSchedule

SEARCH = "search"
PIPE_COLUMNS = 120
TIMES = "CSV file of stage times, with the columns T_F_ms, T_B_ms, T_W_ms, T_comm_ms, and pp, microbatches, model or stage."
LIMIT = (
    "Activations that a rank may hold, in forward passes of one micro-batch. A search has the number of stages by default, as 1F1B needs."
)
SCHEDULE = "`search`, or the name of a schedule."
SET = "Change an option, as listed above: `search.chunks=[1,2]`. Repeat it for more."
OUT = "Write the schedule to this file as the CSV of torch's pipeline runtime, with a chart as SVG. The CSV cannot state recomputation."


def pipeline_schedule(
    times: Annotated[Path, typer.Option(metavar="FILE", help=TIMES)],
    stages: Annotated[int, typer.Option(min=1, help="Number of pipeline ranks.")],
    microbatches: Annotated[int, typer.Option(min=1, help="Number of micro-batches of a step.")],
    memory_limit: Annotated[float | None, typer.Option(metavar="NUMBER", help=LIMIT)] = None,
    schedule: Annotated[str, typer.Option(metavar="NAME", help=SCHEDULE)] = SEARCH,
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET, show_default=False)] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help=OUT)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout.")] = False,
) -> None:
    """Find the shortest schedule of a pipeline within a memory limit.

    Options for --set, with their defaults:

    `search.chunks=[1]`: numbers of model chunks to choose from
    `search.recompute=true`: ranks may recompute activations if that is faster
    `times.model=NAME`: model of the file whose times are used
    `times.weight_memory=0.5`: share of the activations that weight gradients need

    Exit codes: 0 found, 2 wrong input, such as a memory limit that no schedule meets.
    """
    from oppa.cli.option_tables import PipelineOptions, read_options
    from oppa.cli.views import style
    from oppa.pipeline.costs_file import choose, read_profiled

    if out:
        import oppa.report.plotting  # noqa: F401 (before the search: without matplotlib it is refused)

    options = read_options(PipelineOptions, changes or ())
    sizes, found_times = options.search.chunks, read_profiled(times, weight_memory=options.times.weight_memory)
    profiled = choose(found_times, stages=stages, micro_batches=microbatches, model=options.times.model)
    if profiled.micro_batches not in (0, microbatches):
        style.err().print(f"using the times of {profiled.micro_batches} micro-batches, the nearest number in the file")
    limit = _limit(memory_limit, default=float(stages) if schedule == SEARCH else None)
    if schedule == SEARCH:
        from oppa.pipeline.search.joint import search, shapes

        with style.err().status(f"searching {3 * stages * microbatches} passes"):
            choices = shapes(ranks=stages, micro_batches=microbatches, chunks=sizes)
            most = microbatches + 1.0 if limit is None else limit  # no schedule holds more
            found = search(profiled.costs, choices, limit=most, recompute=options.search.recompute)
    else:
        found = _named(schedule, profiled.costs, microbatches, sizes, limit)
    if out:
        _write(found, out, f"{schedule} of {profiled.model or times.name}")
    figures = _figures(found, profiled.costs, schedule, profiled.model, limit)
    if as_json:
        style.print_json(figures)
        return
    _print(found, figures)


def _limit(given: float | None, default: float | None) -> float | None:
    """Return the memory limit; None for an infinite one. Raises InputError if it is no positive number."""
    if given is None:
        return default
    if not given > 0:
        raise InputError(f"`--memory-limit {given:g}` is not a limit", hint="use a positive number of forward passes")
    return None if given == math.inf else given


def _named(schedule: str, costs: "Costs", micro_batches: int, sizes: list[int], limit: float | None) -> "SearchedSchedule":
    """Return a named schedule in the form of a search result; raises InputError if it is unknown or exceeds the memory limit."""
    from oppa.errors import nearest
    from oppa.pipeline.schedules import FOLDED, SCHEDULES, build_schedule
    from oppa.pipeline.search.joint import PipelineVariant, SearchedSchedule
    from oppa.pipeline.search.task import TOLERANCE

    if schedule not in SCHEDULES:
        raise InputError(f"`--schedule {schedule}` is unknown", hint=nearest(schedule, [SEARCH, *SCHEDULES]))
    chunks = max(2, *sizes) if schedule.startswith("interleaved") else 2 if schedule in FOLDED else max(sizes)
    made = build_schedule(schedule, ranks=costs.ranks, micro_batches=micro_batches, chunks=chunks)
    executed, peak = costs.executed(made)
    if limit is not None and max(peak) > limit + TOLERANCE:
        raise InputError(
            f"`{schedule}` needs memory for {max(peak):g} forward passes, over the limit of {limit:g}",
            hint="raise --memory-limit, or use --schedule search",
        )
    return SearchedSchedule(
        variant=PipelineVariant(made.shape), schedule=made, execution=executed, peak_memory=peak, least_s=executed.longest_span_s
    )


def _write(found: "SearchedSchedule", out: Path, title: str) -> None:
    from oppa.cli.views import style
    from oppa.pipeline.torch_csv import to_csv
    from oppa.report.gantt import gantt
    from oppa.report.record import write_texts
    from oppa.report.svg import standalone

    chart = out.with_suffix(".svg")
    if found.variant.recomputed:
        ranks = ", ".join(map(str, sorted(found.variant.recomputed)))
        title += f"; rank {ranks} recomputes activations"
        warning = f"the CSV cannot state that rank {ranks} recomputes activations: wrap their layers in torch.utils.checkpoint"
        style.err().print(f"{warning}, or search with --set search.recompute=false", markup=False)
    texts = {out.name: to_csv(found.schedule), chart.name: standalone(gantt(found.execution, description=title))}
    write_texts(out.parent, texts, named="file")
    style.err().print(f"written: {out}, {chart}", markup=False)


def _figures(found: "SearchedSchedule", costs: "Costs", schedule: str, model: str, limit: float | None) -> dict[str, Any]:
    shape = found.schedule.shape
    return {
        "model": model,
        "pp": shape.ranks,
        "microbatches": shape.micro_batches,
        "schedule": schedule,
        "memory_limit": limit,
        "bubble_rate": round(costs.bubble_rate(found.execution), 6),
        "peak_memory": [round(each, 4) for each in found.peak_memory],
        "longest_span_ms": round(found.execution.longest_span_s * 1e3, 4),
        "least_span_ms": round(found.least_s * 1e3, 4) if schedule == SEARCH else None,
        "chunks": shape.chunks,
        "folded": shape.folded,
        "recomputed": sorted(found.variant.recomputed),
        "critical_path": {name: round(share, 4) for name, share in _critical(found, costs).items()},
    }


def _critical(found: "SearchedSchedule", costs: "Costs") -> dict[str, float]:
    """Return the share of the critical path that each kind of pass or transfer takes."""
    from oppa.pipeline.dag import Dag, shares

    schedule, recomputed = found.schedule, found.variant.recomputed
    times = costs.times(schedule.shape, split=schedule.split, recomputed=recomputed)
    return shares(Dag.of(schedule, times, costs.footprint(schedule.shape, recomputed=recomputed)).critical_path())


def _print(found: "SearchedSchedule", figures: dict[str, Any]) -> None:
    from oppa.cli.views import style
    from oppa.cli.views.gantt import gantt
    from oppa.units import format_seconds

    out = style.out()
    for line in gantt(found.execution, min(out.width, PIPE_COLUMNS) if not out.is_terminal else out.width):
        out.print(line)
    shape = found.schedule.shape
    made = style.table(["", ""])
    made.show_header = False
    made.add_row("letters", f"F forward, B backward, W weight gradient, · idle{'; small for later chunks' if shape.chunks > 1 else ''}")
    made.add_row("bubble rate", f"{figures['bubble_rate']:.2%}")
    made.add_row("longest span", f"{format_seconds(found.execution.longest_span_s)}{_known(found, figures)}")
    made.add_row("critical path", ", ".join(f"{name} {share:.0%}" for name, share in figures["critical_path"].items()))
    limit = "" if figures["memory_limit"] is None else f", of {figures['memory_limit']:g}"
    made.add_row("peak memory", f"{' '.join(f'{each:g}' for each in figures['peak_memory'])} forward passes{limit}")
    if shape.chunks > 1:
        made.add_row("model chunks", f"{shape.chunks}{', as a V' if shape.folded else ''}")
    if found.variant.recomputed:
        made.add_row("recompute on", f"rank {', '.join(map(str, figures['recomputed']))}")
    out.print(made)


def _known(found: "SearchedSchedule", figures: dict[str, Any]) -> str:
    if figures["least_span_ms"] is None:
        return ""
    return ", the shortest possible" if found.gap < 1e-4 else f", at most {found.gap:.1%} over the shortest possible"
