"""torchrun and a program that reads `trial.json`: starts the job's own runner as a trial does, without oppa monitoring it.

All parameters are in that file; see `oppa.trials.trial_folder`.
"""

import json
import os
import shlex
from pathlib import Path

from oppa import catalog
from oppa.errors import InputError
from oppa.problem.bounded_text import parse_json
from oppa.problem.configuration import FACTS, Configuration
from oppa.problem.problem import Problem
from oppa.problem.trial_values import values_of
from oppa.redaction import redacted
from oppa.trials.environments import environment, variables
from oppa.trials.placement import TORCHRUN_RANKS
from oppa.trials.runner import Runner, load_runner
from oppa.trials.trial_folder import SPEC, TrialSpec
from oppa.tuning.formats import launch, stated
from oppa.tuning.formats.format import Files, Reading, only

FILES = (SPEC, launch.SCRIPT)
STEPS = 100

_BODY = """\
steps=${{1:-{steps}}}
case $steps in *[!0-9]*) echo "run.sh: the number of steps is not a number: $steps" >&2; exit 2;; esac
mkdir -p "$here/runs"
run=$(mktemp -d "$here/runs/$(date +%Y%m%d-%H%M%S)-XXXX")
sed "s/\\"steps\\": [0-9][0-9]*/\\"steps\\": $steps/" "$here/trial.json" > "$run/trial.json"
echo "run: $run"
export OPPA_TRIAL="$run" OMP_NUM_THREADS="${{OMP_NUM_THREADS:-1}}" PYTHONPATH={path}"${{PYTHONPATH:+:$PYTHONPATH}}"
{exports}exec {command}"""
_STEPS, _FOLDER = "\0steps", "\0folder"
"""Placeholders for values that the script has only when it runs; the words around them are already quoted."""
_OF_RUNS = frozenset(["steps", "folder", "cache_folder"])
"""Placeholders that a run fills in."""
_NOTE = "Each run creates a folder with one line per step in measurements.jsonl and its outcome in outcome.json."


def export(problem: Problem, configuration: Configuration) -> dict[str, str]:
    """Return the files; raises InputError for a simulated runner, which has no program."""
    problem, runner = problem.restored, load_runner(problem.runner)
    if runner.in_process:
        raise InputError(
            f"the runner `{runner.name}` has no program that torchrun could start", hint="use another format, or another runner"
        )
    spec = TrialSpec.of(problem, configuration, study="", trial=0, steps=STEPS)
    body = _BODY.format(
        steps=STEPS,
        path=shlex.quote(os.pathsep.join(_paths(runner))),
        exports=_exported(runner, problem, configuration),
        command=_users_own(problem, configuration) if problem.command and not problem.command.files else _command(runner, problem),
    )
    usage = f"[STEPS]          default: {STEPS} optimizer steps"
    once = not joins_hosts(problem)
    run = launch.script(problem, configuration, usage=usage, body=body, notes=(_NOTE,), once=once, starts_own=True)
    return {SPEC: json.dumps(spec.to_dict(), indent=1) + "\n", launch.SCRIPT: run}


def own_line(problem: Problem, configuration: Configuration) -> str:
    """Return shell commands that start the user's own launch line; empty if there is none, or if only a run's folder completes it."""
    problem = problem.restored
    if problem.command is None or problem.command.files or problem.command.placeholders & _OF_RUNS:
        return ""
    return f"{_exported(load_runner(problem.runner), problem, configuration)}exec {_users_own(problem, configuration)}"


def parse(problem: Problem, files: Files) -> Reading:
    """Read the file of a trial."""
    values = parse_json(only(files, ".json"), source=f"`{SPEC}`", hint=f"name the {SPEC} that `oppa export` wrote")
    settings = stated.table(values if isinstance(values, dict) else {"configuration": values}, "configuration")
    return Reading(settings={name: value for name, value in settings.items() if name != FACTS})


def _exported(runner: Runner, problem: Problem, configuration: Configuration) -> str:
    """Return the shell commands that set the environment variables."""
    return "".join(f"export {name}={value}\n" for name, value in _exports(runner, problem, configuration).items())


def _exports(runner: Runner, problem: Problem, configuration: Configuration) -> dict[str, str]:
    """Return the environment variables of framework, runner and parameters, and of a command that may be torchrun without its ranks.

    A launch line that finds programs through PATH gets the study's PATH, so that it finds the programs that its trials used.
    """
    found = {name: launch.unless_set(name, value) for name, value in problem.default_variables(configuration).items()}
    found |= {name: _variable(name, value) for name, value in (runner.environment | problem.variables(configuration)).items()}
    if runner.command:
        found |= {TORCHRUN_RANKS: str(problem.cluster.devices_per_host), **(_meeting(problem) if joins_hosts(problem) else {})}
    recorded = problem.software.path if problem.software else ""
    return found | ({"PATH": f'{shlex.quote(recorded)}:"$PATH"'} if recorded else {})


def joins_hosts(problem: Problem) -> bool:
    """Return whether the script is run on several hosts, whose ranks it joins; a launch line that begins with srun starts them itself."""
    return problem.cluster.hosts > 1 and not (problem.command and problem.launcher.is_own_step)


def _meeting(problem: Problem) -> dict[str, str]:
    """Return the variables by which torchrun joins several hosts, for a shell."""
    hosts = str(problem.cluster.hosts)
    return {"PET_NNODES": hosts, "PET_NODE_RANK": launch.RANK, "PET_MASTER_ADDR": launch.ADDRESS, "PET_MASTER_PORT": launch.PORT}


def _variable(name: str, value: str) -> str:
    """Return a variable's value for the script; a secret stays in the environment of the user who runs the script."""
    return shlex.quote(value) if redacted([f"{name}={value}"]) == [f"{name}={value}"] else f'"${{{name}:?is a secret, so set it}}"'


def _paths(runner: Runner) -> list[str]:
    """Return the folders in which a runner's programs find `oppa_client`, and oppa if they run in an environment of their own."""
    found = [str(catalog.client())]
    if own := environment(runner.folder):
        found.append(variables(own.python, own.path / "packages")["PYTHONPATH"])
    return found


def _users_own(problem: Problem, configuration: Configuration) -> str:
    """Return the user's launch line unchanged, run from the folder in which it was tuned, or from the present one if that is not there."""
    command = problem.launch_line(configuration)
    assert command is not None
    values = values_of(configuration, problem.stated_model, problem.cluster, problem.training, steps=0, folder=Path(_FOLDER))
    tuned = problem.software.folder if problem.software else ""
    folder = tuned if tuned and Path(tuned).is_dir() else str(Path.cwd())
    quoted = shlex.join(command.words({**values, "steps": _STEPS}, {}))
    words = quoted.replace(_STEPS, "'\"$steps\"'").replace(_FOLDER, "'\"$run\"'")
    return f'sh -c \'cd "$0" && exec "$@"\' {shlex.quote(folder)} {words}'


def _command(runner: Runner, problem: Problem) -> str:
    """Return the runner's own command with the programs of its trials, else torchrun of its Python.

    In the script, `$run` is the folder of the run.
    """
    if not runner.command:
        words = launch.torchrun(problem).removeprefix("torchrun ")
        return f"{shlex.quote(str(runner.python))} -P -m torch.distributed.run {words} {shlex.quote(str(runner.program))}"
    values = {"python": str(runner.python), "program": str(runner.program), "nproc": str(problem.cluster.devices), "folder": "$run"}
    pinned = problem.software.programs if problem.software else {}
    started = [pinned.get(word, word) for word in runner.command]
    return " ".join('"$run"' if word == "{folder}" else shlex.quote(word.format(**values)) for word in started)
