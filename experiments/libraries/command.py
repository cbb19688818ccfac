"""`oppa bench libraries`: tune launch lines of real libraries, and check winners and canaries by hand."""

from pathlib import Path
from typing import Annotated

import typer

RUN = "First tune and run what is not recorded, which takes an hour on an idle machine. The same command continues an interrupted run."
TASKS = "Libraries; all by default."
TRIALS = "Limit of each search."
ROUNDS = "Runs by hand of a configuration that may be the fastest."
OUT = "Folder of the record; results/libraries by default."


def command(
    run: Annotated[bool, typer.Option("--run", help=RUN)] = False,
    tasks: Annotated[str | None, typer.Option(metavar="A,B,C", help=TASKS)] = None,
    trials: Annotated[int, typer.Option(min=1, help=TRIALS)] = 20,
    rounds: Annotated[int, typer.Option(min=1, help=ROUNDS)] = 5,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help=OUT)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout.")] = False,
) -> None:
    """Compare winners of launch lines with runs of all configurations by hand, and what trials write, by the newest runs.

    The libraries are Transformers, accelerate, Lightning, DeepSpeed, torchtitan, Megatron-LM, and a plain loop around DDP. Their models are
    tiny, and run on CPUs.
    """
    from experiments.lib.result_output import print_result, write_result
    from experiments.libraries.lines import LIBRARIES, require_installed
    from experiments.libraries.page import sections
    from experiments.libraries.run import measure, read, to_json
    from oppa import catalog
    from oppa.bench.registry import inputs
    from oppa.cli.commands.bench_list import words
    from oppa.cli.views import style
    from oppa.cli.views.status import showing_status

    named = words(tasks)
    known = inputs("libraries", named, trials=trials, rounds=rounds)
    names = [name for name in LIBRARIES if name in known.tasks]
    folder = (out or catalog.root() / "results" / "libraries").resolve()
    if run:
        require_installed(names)
        work = folder / "work" if out else catalog.root() / "runs" / "libraries"
        with showing_status() as tell:
            measure(names, trials=trials, rounds=rounds, folder=folder, work=work, tell=tell)
    found = [each for name in names if (each := read(folder, name)).winner]
    if not found:
        style.err().print("nothing is recorded; `--run` measures", markup=False)
    print_result(sections(found), lambda: to_json(found), as_json=as_json)
    if run:
        write_result(folder, "Launch lines of real libraries", sections(found), known)
