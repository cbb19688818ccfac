"""Launch lines of a plain program on a real Slurm: a step in an allocation, and the header of a batch script."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oppa.study import Study
from tests.launchers.slurm_cluster import SlurmCluster

PROGRAM = """
import argparse, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
parser.add_argument("--accumulate", type=int)
given = parser.parse_args()
for step in range(12):
    began = time.perf_counter()
    for _ in range(given.accumulate):
        time.sleep(0.004 + 0.001 * given.batch)
    if os.environ.get("RANK", os.environ.get("SLURM_PROCID")) == "0":
        print(f"step {step} {1e3 * (time.perf_counter() - began):.3f} ms", flush=True)
"""
TORCHRUN = f"{sys.executable} -m torch.distributed.run"
OWN = "--batch {micro_batch=1:1,4} --accumulate {num_microbatches}"
SETTINGS = ("batch.global_batch=16", "cluster.device=CPU", "cluster.memory_limit='1 GiB'", "limits.q_min=3", "limits.q_max=4")
LIMITS = ["--trials", "2", *(word for each in SETTINGS for word in ("--set", each))]


class Typed:
    """Acts as a terminal in a folder with the program."""

    def __init__(self, slurm: SlurmCluster, folder: Path) -> None:
        self.slurm, self.folder = slurm, folder
        (folder / "loop.py").write_text(PROGRAM)

    def tune(self, line: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
        words = [sys.executable, "-m", "oppa", "tune", "--json", "--study", "S", *LIMITS, "--", *shlex.split(line)]
        done = subprocess.run(
            words, cwd=self.folder, env=environment or self.slurm.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def typed(slurm, tmp_path) -> Typed:
    return Typed(slurm, tmp_path)


def test_a_step_that_the_line_starts_is_each_trial(typed) -> None:
    line = f"srun -N2 --ntasks-per-node=2 {sys.executable} loop.py {OWN}"
    with typed.slurm.allocation("--ntasks-per-node=2") as held:
        found = typed.tune(line, {**typed.slurm.environment, **held.environment})
    assert found["best"]["configuration"]["micro_batch"] == 4
    assert found["launch_line"]["words"][:3] == ["srun", "-N2", "--ntasks-per-node=2"]
    with Study(typed.folder / "S") as study:
        assert {trial.outcome for trial in study.trials()} == {"completed"}
        assert study.problem.cluster.devices == 4


@pytest.mark.nightly  # it starts torchrun 16 times; tests/tuning/launch_line has what is requested, without a Slurm
def test_a_batch_script_states_what_is_requested(typed) -> None:
    header = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --partition=high\n#SBATCH --time=5\n"
    (typed.folder / "run.sh").write_text(f'#!/bin/bash\n{header}srun {TORCHRUN} --nnodes 2 --nproc-per-node 1 loop.py "$@"\n')
    found = typed.tune(f"sbatch run.sh {OWN}")
    with Study(typed.folder / "S") as study:
        options = study.problem.launcher.options
        assert (options["partition"], options["time"]) == ("high", "5")
    assert found["best"]["configuration"]["micro_batch"] == 4
