"""`oppa show STUDY`: what a study knows."""

from pathlib import Path
from typing import Annotated

import typer


def show(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study's folder.", show_default=False)],
    limit: Annotated[int, typer.Option(min=1, help="Trials shown, fastest first.")] = 20,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write the record there: table.md and trials.csv.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, as `oppa tune --json` does.")] = False,
) -> None:
    """Show a study: its trials, the winner, the default and the gain between them."""
    from oppa.cli import style
    from oppa.cli.summary import print_finding
    from oppa.problem.problem import Problem
    from oppa.report.record import write_record
    from oppa.report.study import sections, write_csv
    from oppa.study import Study
    from oppa.tuning.result import current, to_json

    with Study(study) as opened:
        problem = Problem.from_dict(opened.meta["problem"])
        candidates, trials = problem.candidates(), opened.trials()
        finding = current(trials, candidates, problem.limits.repeats)
        if as_json:
            import json

            typer.echo(json.dumps(to_json(opened, finding, None), indent=1))
            return
        record = sections(trials, candidates=len(candidates))
        if out:
            write_record(out, f"Study of `{problem.name}`", record, origins=opened.sittings())
            write_csv(out / "trials.csv", trials)
            style.err().print(f"written: {out / 'table.md'}, {out / 'trials.csv'}", markup=False)
    summary, *_, listed = record
    facts = style.table(("fact", "value"))
    for cells in summary.rows:
        facts.add_row(*map(str, cells))
    table = style.table(("trial", "configuration", "outcome", ">steps/s", ">±", ">MiB", ">steps", ">seconds"))
    for cells in listed.rows[:limit]:
        number, name, outcome, *rest = map(str, cells)
        table.add_row(number, name, style.outcome(outcome), *rest)
    style.out().print(facts, table)
    if finding:
        print_finding(finding, console=style.out())
