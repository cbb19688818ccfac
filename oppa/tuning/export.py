"""Hands over the winner: the study's `best/` folder, with a script that starts the job with one command."""

import dataclasses
import shlex
import sys
from pathlib import Path

from oppa.problem.problem import Problem
from oppa.study import Study, Trial
from oppa.trials.runner import Runner, load_runner
from oppa.trials.wire import TrialSpec, write_json

STEPS = 100

_SCRIPT = """\
#!/bin/sh
# Starts {name} with the configuration that oppa found: {id}.
#
#   {script} [STEPS]          default: {steps} optimizer steps
#
# Each run gets a folder of its own: one line per step in measurements.jsonl, the end in outcome.json.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$here/runs"
run=$(mktemp -d "$here/runs/$(date +%Y%m%d-%H%M%S)-XXXX")
sed "s/\\"steps\\": [0-9]*/\\"steps\\": ${{1:-{steps}}}/" "$here/trial.json" > "$run/trial.json"
echo "run: $run"
export OPPA_TRIAL="$run" OMP_NUM_THREADS="${{OMP_NUM_THREADS:-1}}" PYTHONPATH={path}"${{PYTHONPATH:+:$PYTHONPATH}}"
{exports}exec {command}
"""


def write_best(study: Study, problem: Problem, best: Trial) -> Path | None:
    """Write `best/{configuration.json, trial.json, run.sh}`; returns the script, which a job that is imitated has not."""
    folder = study.folder / "best"
    runner = load_runner(problem.runner)
    TrialSpec.of(problem, best.configuration, study=study.uuid, trial=best.id, steps=STEPS).write(folder)
    write_json(folder / "configuration.json", dataclasses.asdict(best.configuration))
    if runner.in_process:
        return None
    script = folder / "run.sh"
    script.write_text(
        _SCRIPT.format(
            name=problem.name,
            id=best.configuration.id,
            script=script.name,
            steps=STEPS,
            path=shlex.quote(str(runner.folder.parent)),
            exports="".join(f"export {name}={shlex.quote(value)}\n" for name, value in runner.environment.items()),
            command=_command(runner, problem.cluster.devices),
        )
    )
    script.chmod(0o755)
    return script


def _command(runner: Runner, ranks: int) -> str:
    """The runner's own command, else torchrun's; `$run` is the run's folder in the script."""
    words = runner.command or ("{python}", "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{nproc}", "{program}")
    values = {"python": sys.executable, "program": str(runner.program), "nproc": str(ranks)}
    return " ".join('"$run"' if word == "{folder}" else shlex.quote(word.format(**values, folder="$run")) for word in words)
