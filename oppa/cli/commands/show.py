"""`oppa show PATH`: show the results of a study, or a table."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from oppa.problem.problem import Problem
    from oppa.study import Study
    from oppa.tuning.surrogate_summary import SurrogateSummary

    Learned = Mapping[str, SurrogateSummary]

SURROGATE = "Show the fitted surrogate instead: its coefficients, and the parameters that they do not explain."


def show(
    study: Annotated[Path, typer.Argument(metavar="PATH", help="The study's folder, or the table's.", show_default=False)],
    limit: Annotated[int, typer.Option(min=1, help="Number of trials to show, fastest first.")] = 20,
    surrogate: Annotated[bool, typer.Option("--surrogate", help=SURROGATE)] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write a record to this folder: table.md, and trials.csv or a plot.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write every trial, or every row of the table, to a CSV file.")] = None,
    parquet: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the same to a Parquet file, which needs pyarrow.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, as `oppa tune --json` does.")] = False,
) -> None:
    """Show a study: its trials, the winner, and its speed-up over the reference. Or show a table: throughput by batch size.

    Exit codes: 0 shown, 2 wrong input, 3 environment lacking.
    """
    from oppa.cli.views.study_view import print_study, print_surrogate
    from oppa.cli.views.table_view import holds_table, show_table, write_rows

    if holds_table(study) and not surrogate:
        show_table(study, out=out, csv=csv, parquet=parquet, as_json=as_json)
        return
    from oppa.study import Study

    with Study(study) as opened:
        problem = opened.problem
        if csv or parquet:
            from oppa.report.study import frame

            write_rows(frame(opened.trials()), csv, parquet)
        learned = _learned(opened, problem) if surrogate else {}
        if out:
            _write(opened, problem, learned, out)
        if as_json:
            _print_json(opened, problem, learned)
        elif surrogate:
            print_surrogate(learned)
        else:
            print_study(opened, problem, limit=limit)


def _learned(study: "Study", problem: "Problem") -> "Learned":
    """Return summaries of the surrogate that is fitted to the study's trials, with the cost model as its mean if the job has a prior.

    Raises:
        InputError: nothing was measured.
    """
    from oppa.errors import InputError
    from oppa.tuning.explanation import designer_of
    from oppa.tuning.surrogate_summary import surrogate_summaries

    candidates, trials = problem.candidates(), study.trials()
    if not any(trial.steps_per_s for trial in trials):
        raise InputError(f"the study `{study.folder}` has no measurement yet", hint="run trials: `oppa tune` with this study")
    return surrogate_summaries(designer_of(problem, candidates, trials), candidates)


def _print_json(study: "Study", problem: "Problem", learned: "Learned") -> None:
    from oppa.cli.views import style
    from oppa.tuning.comparison import compare_contenders
    from oppa.tuning.equivalence import equivalence
    from oppa.tuning.result import to_json
    from oppa.tuning.verify.past import past

    found = compare_contenders(study.trials(), problem.candidates(), problem.limits.repeats, problem.baseline)
    result = to_json(study, found, None, equivalence(study, found, problem))
    result["verifications"] = [each.to_dict() for each in past(study.folder)]
    if learned:
        result["surrogate"] = {quantity: each.to_dict() for quantity, each in learned.items()}
    style.print_json(result)


def _write(study: "Study", problem: "Problem", learned: "Learned", out: Path) -> None:
    from oppa.cli.views import style
    from oppa.report.record import write_record, written
    from oppa.report.study import frame, sections, slow_nodes_of
    from oppa.report.surrogate import sections as sections_of_surrogate
    from oppa.report.verifications import section
    from oppa.tuning.spending import spending
    from oppa.tuning.verify.past import past

    trials, spent = study.trials(), spending(study, problem)
    known = sections(
        trials,
        candidates=len(problem.candidates()),
        objective=problem.objective,
        software=problem.software,
        spent=spent,
        slow_nodes=slow_nodes_of(problem),
    )
    verified = [section(found)] if (found := past(study.folder)) else []
    record = [*known, *verified, *sections_of_surrogate(learned)]
    write_record(out, f"Study of `{problem.name}`", record, origins=study.sessions())
    with written(out):
        frame(trials).to_csv(out / "trials.csv", index=False)
    style.err().print(f"written: {out / 'table.md'}, {out / 'trials.csv'}", markup=False)
