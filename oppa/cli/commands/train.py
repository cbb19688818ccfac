"""`oppa train JOB`: train a job to its end, and recover from failures."""

from pathlib import Path
from typing import Annotated

import typer

from oppa.cli.job_options import Changes, Command, ModelWords, settings_of

SOURCE = "The job file; or the folder of a study, to train its winner."
CONFIGURATION = (
    "The configuration: an id, `dp=2,micro_batch=4` with the rest at its defaults, or a JSON file. With --table, `global_batch=16` selects"
    " the fastest row of that batch. A resumed run changes to it."
)
RUN = "Folder of the run: an existing one resumes from its newest checkpoint. The default is a new one below runs/."
TABLE = "Folder of a table: a new run begins with its fastest configuration, and step times refine a copy in the run's folder."
POLICY = (
    "Policy that chooses batch sizes and layout during the run, from --table: `goodput`, `critical-batch`, `norm-test`, `stagewise`,"
    " `static`; without a table `proportional`, and with --weights `rl` and `explore`. Its settings follow the name:"
    " `norm-test,eta=0.3`, `rl,baseline=proportional`."
)
CONTROL = "Running control service, `JOB@127.0.0.1:PORT`, with its own policy and table. OPPA_CONTROL_TOKEN holds the token of the job."
WEIGHTS = "Weights from `oppa train-policy`, for `--policy rl` or for `--policy explore`, which samples its actions at random."
ADVISE = "Print decisions without acting on them; the default in the first run of an own trainer under a policy."
EVAL_RUN = "Folder of a run of this job under `--policy explore`, to evaluate `rl` before it may act. Repeat it for more."


def train(
    source: Annotated[Path, typer.Argument(metavar="JOB|STUDY", help=SOURCE, show_default=False)],
    setting: Annotated[str, typer.Argument(metavar="CONFIGURATION", help=CONFIGURATION, show_default=False)] = "",
    command: Command = None,
    *,
    run: Annotated[Path | None, typer.Option(metavar="FOLDER", help=RUN)] = None,
    table: Annotated[Path | None, typer.Option(metavar="FOLDER", help=TABLE)] = None,
    policy: Annotated[str, typer.Option(metavar="NAME", help=POLICY, show_default=False)] = "",
    weights: Annotated[Path | None, typer.Option(metavar="FILE", help=WEIGHTS)] = None,
    eval_run: Annotated[list[Path] | None, typer.Option(metavar="RUN", help=EVAL_RUN, show_default=False)] = None,
    control: Annotated[str, typer.Option(metavar="JOB@ADDRESS", help=CONTROL, show_default=False)] = "",
    changes: Changes = None,
    model: ModelWords = None,
    advise: Annotated[bool | None, typer.Option("--advise/--no-advise", help=ADVISE, show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Train a job to its end; restart ranks that die from the newest checkpoint.

    With a launch line after `--`, train your own trainer, which opens its run with `oppa_client`.
    Ctrl-C saves a checkpoint and stops; a second Ctrl-C stops at once. The same command with --run resumes.

    Exit codes: 0 trained to its end, 1 training failed, 2 wrong input, 3 environment lacking, 130 stopped.
    """
    from oppa import api
    from oppa.cli.views import style
    from oppa.cli.views.run_view import RunSessionView, print_ended

    view = RunSessionView()
    with view.caught():
        result = api.train(
            source,
            setting,
            run=run,
            settings=settings_of(changes, model, {"train.advise": advise}),
            command=command or (),
            table=table,
            policy=policy,
            weights=weights,
            eval_runs=eval_run or (),
            control=control,
            callback=view,
            tell=lambda verdict: style.err().print(f"check   {verdict}", markup=False, soft_wrap=True),
        )
    code = print_ended(result)
    if as_json:
        style.print_json(result.to_dict())
    raise typer.Exit(code)
