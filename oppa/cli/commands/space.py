"""`oppa space JOB`: count and list the legal configurations."""

from typing import Annotated

import typer

from oppa.cli.job_options import Changes, Command, Job, ModelWords, problem_of, settings_of


def space(
    job: Job = None,
    command: Command = None,
    *,
    changes: Changes = None,
    model: ModelWords = None,
    limit: Annotated[int, typer.Option(min=0, help="Number of configurations to list.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print every configuration as JSON, one a line.")] = False,
) -> None:
    """Count and list the valid configurations of a job, the default configurations first.

    Exit codes: 0 listed, 2 wrong input, 3 environment lacking.
    """
    from rich.markup import escape

    from oppa.cli.views import style
    from oppa.cli.views.summary import warn_of_unknown_device
    from oppa.problem.describe import by_degrees, varying

    problem = problem_of(job, command or (), settings_of(changes, model))
    warn_of_unknown_device(problem.cluster)
    candidates = problem.candidates()
    if as_json:
        import json

        for configuration in candidates:
            typer.echo(json.dumps(configuration.to_dict()))
        return
    style.out().print(f"{len(candidates)} valid configurations of `{problem.space.name}` for {problem.name}\n")
    degrees = style.table((">dp", ">tp", ">pp", ">configurations"))
    for (dp, tp, pp), count in by_degrees(candidates).items():
        degrees.add_row(str(dp), str(tp), str(pp), str(count))
    style.out().print(degrees)
    knobs = style.table(("parameter", "values"))
    for name, values in varying(candidates).items():
        knobs.add_row(name, escape(", ".join(map(str, values))))
    style.out().print(knobs)
    order = candidates.default_order()[:limit]
    style.out().print("the default configuration is the first of these that fits:\n" if len(order) else "")
    for index in order:
        style.out().print(f"  {candidates.configuration(int(index)).id}")
