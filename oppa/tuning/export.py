"""Hands over the winner: the study's `best/` folder, with a script that starts the job with one command."""

import dataclasses
import shlex
import sys
from pathlib import Path

from oppa.problem.problem import Problem
from oppa.study import Study, Trial
from oppa.trials.wire import SPEC, TrialSpec, write_json

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
exec {python} -P -m torch.distributed.run --standalone --nnodes {hosts} --nproc-per-node {per_host} {program}
"""


def write_best(study: Study, problem: Problem, best: Trial) -> Path:
    """Write `best/{configuration.json, trial.json, run.sh}`; returns the script."""
    from oppa.trials.runner import load_runner

    folder = study.folder / "best"
    runner = load_runner(problem.runner)
    spec = TrialSpec(
        study=study.uuid,
        trial=best.id,
        configuration=best.configuration,
        model=problem.model,
        cluster=problem.cluster,
        training=problem.training,
        steps=STEPS,
    )
    spec.write(folder)
    assert (folder / SPEC).is_file()
    write_json(folder / "configuration.json", dataclasses.asdict(best.configuration))
    script = folder / "run.sh"
    script.write_text(
        _SCRIPT.format(
            name=problem.name,
            id=best.configuration.id,
            script=script.name,
            steps=STEPS,
            python=shlex.quote(sys.executable),
            path=shlex.quote(str(runner.folder.parent)),
            hosts=problem.cluster.hosts,
            per_host=problem.cluster.devices_per_host,
            program=shlex.quote(str(runner.program)),
        )
    )
    script.chmod(0o755)
    return script
