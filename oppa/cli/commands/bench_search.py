"""`oppa bench search`: measure how fast each designer finds the fastest configuration, on tasks with known answers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oppa.bench.runs import Log, Run
    from oppa.bench.search import Comparison
    from oppa.simulator.benchmark_task import BenchmarkTask

SUITE = "replay (published runs of nanotron), simulated, cpu, or a search space file with `\\[replay]`."
TABLE = "CSV file of the measurements, instead of the suite's own below OPPA_DATA."
DESIGNERS = "Designers to compare, separated by commas; all by default."
VARIATIONS = "Also run `oppa` under changed noise, limits and priors: all variations, or some by name."
OUT = "Folder of the raw log and of the page; an existing log is continued."


def search(
    suite: Annotated[str, typer.Option(metavar="NAME|FILE.toml", help=SUITE)] = "replay",
    table: Annotated[Path | None, typer.Option(metavar="CSV", help=TABLE)] = None,
    designers: Annotated[str | None, typer.Option(metavar="A,B,C", help=DESIGNERS)] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of searches of each designer on each task.")] = 10,
    trials: Annotated[int, typer.Option(min=1, help="Number of trials of each search.")] = 30,
    variations: Annotated[str | None, typer.Option(metavar="all|A,B,C", help=VARIATIONS)] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help=OUT)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON on stdout.")] = False,
) -> None:
    """Compare designers on recorded or simulated tasks, under one protocol.

    No trial really runs: each returns a throughput with the noise of a trial and of its steps, and costs a start of a minute.
    """
    from oppa.bench.declared import DESIGNERS as ALL
    from oppa.bench.search import Comparison, compare
    from oppa.bench.variations import variations_named
    from oppa.cli.views import style
    from oppa.cli.views.progress import PlayProgress
    from oppa.report.record import provenance
    from oppa.tuning.designers import DESIGNERS as INSTALLED

    comparison = Comparison(
        suite=suite,
        table=table,
        designers=tuple(name.strip() for name in designers.split(",")) if designers else tuple(name for name in ALL if name in INSTALLED),
        seeds=seeds,
        trials=trials,
        variations=variations_named(variations or ""),
    )
    tasks, empty = comparison.tasks()
    for name in empty:
        style.err().print(f"left out: `{name}` has no configuration that runs", markup=False)
    environment = provenance()
    log = _log(comparison, tasks, out, environment)
    try:
        with PlayProgress() as progress:
            runs = compare(comparison, tasks, log, progress.tell)
    except KeyboardInterrupt:
        style.err().print(
            "interrupted" + ("; the same command continues" if out else "; only a comparison with `--out` can be continued"), markup=False
        )
        raise
    _print(runs, tasks, comparison, environment, as_json)
    if log and out:
        from oppa.bench.search_page import write_page

        style.err().print(f"written: {write_page(out)}", markup=False)


def _log(comparison: "Comparison", tasks: "Sequence[BenchmarkTask]", out: Path | None, environment: dict[str, str]) -> "Log | None":
    """Return the raw log below `out`, ready for further searches; None without `out`."""
    from oppa.bench.runs import Log

    if out is None:
        return None
    log = Log(path=out / "runs.jsonl", protocol=comparison.protocol(tasks))
    log.read()  # refuses a log of another comparison before anything is written to it
    log.open_session(environment)
    return log


def _print(
    runs: "Sequence[Run]", tasks: "Sequence[BenchmarkTask]", comparison: "Comparison", environment: dict[str, str], as_json: bool
) -> None:
    from oppa.bench.scores import to_json
    from oppa.bench.sections import comparison_sections
    from oppa.bench.variations import PLAIN
    from oppa.cli.views import style

    headline = {task.name for task in tasks if task.headline}
    plain = [run for run in runs if run.variation == PLAIN]
    counted, apart = ([run for run in plain if (run.task in headline) == wanted] for wanted in (True, False))
    if as_json:
        style.print_json(to_json(counted, apart, comparison.trials, environment))
        return
    for section in comparison_sections(counted, apart, comparison.trials):
        style.print_section(section)
