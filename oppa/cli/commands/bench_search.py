"""`oppa bench search`: measure how fast each designer finds the fastest configuration, on tasks with known answers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oppa.bench.declared import DESIGNERS as COMPARED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oppa.bench.runs import Log, SearchRun
    from oppa.bench.search import Comparison
    from oppa.simulator.benchmark_task import BenchmarkTask

SUITE = "Suite of tasks, `all` for every suite, or a search space file with `\\[replay]`."
TABLE = "CSV file of the measurements, instead of the suite's own below OPPA_DATA."
DESIGNERS = f"Designers to compare, separated by commas; by default {', '.join(COMPARED)}."
VARIATIONS = "Also run `oppa` under changed noise, limits and priors: all variations, or some by name."
SEEDS = (
    "Searches of each designer on each task, 10 by default. With `all`, searches of `oppa`, 5 by default; other designers keep at most 2."
)
OUT = "Folder of the raw log and of the page; an existing log is continued. `all` has a folder below it for each suite."


def search(
    suite: Annotated[str, typer.Option(metavar="NAME|FILE.toml", help=SUITE)] = "replay",
    table: Annotated[Path | None, typer.Option(metavar="CSV", help=TABLE)] = None,
    designers: Annotated[str | None, typer.Option(metavar="A,B,C", help=DESIGNERS)] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help=SEEDS)] = None,
    trials: Annotated[int, typer.Option(min=1, help="Number of trials of each search.")] = 30,
    variations: Annotated[str | None, typer.Option(metavar="all|A,B,C", help=VARIATIONS)] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help=OUT)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON on stdout.")] = False,
) -> None:
    """Compare designers on recorded or simulated tasks, under one protocol.

    No trial really runs: each returns a throughput with the noise of a trial and of its steps, and costs a start of a minute.
    Suites whose measured data are missing are skipped by `--suite all`.

    Suites: replay (published runs of nanotron), aleph-8k (published runs on A100), cpu, simulated, moe, long-context, fsdp, black-box,
    adversarial.
    """
    from oppa.bench.search import Comparison, every_suite
    from oppa.bench.suites import ALL, OWN_SEEDS
    from oppa.bench.variations import variations_named
    from oppa.cli.commands.bench_list import words
    from oppa.errors import InputError
    from oppa.report.record import provenance
    from oppa.tuning.designers import known_designers

    known = tuple(name for name in COMPARED if name in known_designers())
    chosen = words(designers) or known
    environment = provenance()
    if suite == ALL:
        if table or variations:
            raise InputError("`--suite all` has tables and variations of its own", hint="remove --table and --variations")
        _every(every_suite(chosen, seeds=seeds or OWN_SEEDS, trials=trials), out, environment, as_json=as_json)
        return
    made = Comparison(
        suite=suite, table=table, designers=chosen, seeds=seeds or 10, trials=trials, variations=variations_named(variations or "")
    )
    tasks, empty = made.tasks()
    _print(_compare(made, tasks, empty, out, environment), tasks, made, environment, as_json=as_json)


def _compare(
    comparison: "Comparison", tasks: "Sequence[BenchmarkTask]", empty: "Sequence[str]", out: Path | None, environment: dict[str, str]
) -> "list[SearchRun]":
    """Return the runs of a comparison on its tasks. They are logged below `out`, next to the page."""
    from oppa.bench.search import compare
    from oppa.cli.views import style
    from oppa.cli.views.progress import PlayProgress

    if out:
        from oppa.bench.search_page import write_page  # before the runs: without matplotlib it is refused

    for name in empty:
        style.err().print(f"left out: `{name}` has no configuration that runs", markup=False)
    comparison, unable = comparison.without_unable(tasks)
    for name, why in unable.items():
        style.err().print(f"left out: `{name}` cannot search `{comparison.suite}`: {why}", markup=False)
    comparison, void = comparison.without_void(tasks)
    for name, why in void.items():
        style.err().print(f"left out: the variation `{name}` on `{comparison.suite}`: {why}", markup=False)
    log = _log(comparison, tasks, out, environment)
    try:
        with PlayProgress() as progress:
            runs = compare(comparison, tasks, log, progress.tell)
    except KeyboardInterrupt:
        style.err().print(
            "interrupted" + ("; the same command continues" if out else "; only a comparison with `--out` can be continued"), markup=False
        )
        raise
    if log and out:
        style.err().print(f"written: {write_page(out)}", markup=False)
    return runs


def _every(comparisons: "Sequence[Comparison]", out: Path | None, environment: dict[str, str], *, as_json: bool) -> None:
    """Compare designers on every suite whose data are here, and print the comparison over all."""
    from oppa.bench.declared import PROTOCOL
    from oppa.bench.pooled import SuiteRuns, pooled_json, pooled_sections, write_pooled
    from oppa.bench.suites import ALL, EVERY
    from oppa.cli.views import style
    from oppa.errors import EnvironmentLackingError

    found, skipped, trials = [], dict[str, str](), comparisons[0].trials
    for each in comparisons:
        style.err().print(f"suite `{each.suite}`", markup=False)
        try:
            tasks, empty = each.tasks()
        except EnvironmentLackingError as error:
            skipped[each.suite] = error.message
            style.err().print(f"SKIPPED: `{each.suite}`: {error.message}", markup=False)
            continue
        runs = _compare(each, tasks, empty, out and out / each.suite, environment)
        found.append(SuiteRuns.of(each.suite, runs, [task.name for task in tasks if not task.headline]))
    if as_json:
        style.print_json(pooled_json(found, trials, skipped, environment))
    else:
        for section in pooled_sections(found, trials, skipped):
            style.print_section(section)
    if out:
        inputs = EVERY.inputs(suite=ALL, trials=trials, protocol=PROTOCOL)
        style.err().print(f"written: {write_pooled(out, trials, skipped, inputs)}", markup=False)


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
    runs: "Sequence[SearchRun]", tasks: "Sequence[BenchmarkTask]", comparison: "Comparison", environment: dict[str, str], *, as_json: bool
) -> None:
    from oppa.bench.scores import to_json
    from oppa.bench.sections import comparison_sections, user_section
    from oppa.bench.variations import PLAIN
    from oppa.cli.views import style

    headline = {task.name for task in tasks if task.headline}
    plain = [run for run in runs if run.variation == PLAIN]
    counted, apart = ([run for run in plain if (run.task in headline) == wanted] for wanted in (True, False))
    if as_json:
        style.print_json(to_json(counted, apart, comparison.trials, environment))
        return
    gains = user_section(counted or apart)
    for section in (*comparison_sections(counted, apart, comparison.trials), *([gains] if gains else [])):
        style.print_section(section)
