"""Launch lines of real libraries, as their documents have them, are tuned without a job file.

The winner's line is printed and runs. Trials change no byte of the folders that the line names. A library that is missing here is a
skipped test; `oppa env create deepspeed` makes the environment of DeepSpeed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.libraries.canaries import digest, fill
from oppa import catalog
from oppa.trials.environments import environment

BATCH = ["--set", "batch.global_batch=8"]
LINES = {
    "transformers": (
        "torchrun --nproc_per_node 2 hf.py --output_dir canary/out --save_steps 10 --max_steps 40 --report_to none"
        " --per_device_train_batch_size 1 --gradient_accumulation_steps 4 --ddp_bucket_cap_mb 25 --export canary/export"
    ),
    "accelerate": (
        "accelerate launch --cpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no accelerated.py --steps 40"
        " --project_dir canary/logs --output_dir canary/out --checkpointing_steps 10 --with_tracking"
        " --batch {micro_batch=1:1,2,4} --accumulate {num_microbatches}"
    ),
    "lightning": (
        "python cli.py fit --trainer.accelerator cpu --trainer.devices 2 --trainer.strategy ddp --trainer.max_steps 40"
        " --trainer.default_root_dir canary/root --data.batch_size 1 --trainer.accumulate_grad_batches 4"
    ),
    "deepspeed": "torchrun --nproc_per_node 2 zero.py --steps 40 --save_dir canary/out --deepspeed --deepspeed_config ds.json",
    "plain": (
        "torchrun --nproc_per_node 2 ddp.py --steps 40 --save-dir canary/out --log-dir=canary/logs --weights canary/weights.pt"
        " --batch {micro_batch=1:1,2,4} --accumulate {num_microbatches}"
    ),
}
SETTINGS = {
    "transformers": ["--set", 'command.paths."--export"=redirect'],
    "accelerate": BATCH,
    "plain": [*BATCH, "--set", 'command.paths."--weights"=redirect'],
}
NEEDS = {"transformers": "transformers", "accelerate": "accelerate", "lightning": "typeshed_client"}
LIMITS = ["--trials", "3", *(word for name in ("device_lock=false", "q_min=3", "q_max=4") for word in ("--set", f"limits.{name}"))]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def program(oppa, monkeypatch):
    """The command line in a folder with canaries and no job file."""
    (oppa.folder / "job.toml").unlink()
    fill(oppa.folder)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(oppa.folder / "canary" / "tb"))
    return oppa


def words_of(library: str) -> list[str]:
    """Return the launch line of a library, with the interpreter that has it."""
    if library == "deepspeed":
        made = environment(catalog.root() / "runners" / "deepspeed")
        if made is None or made.state != "ready":
            pytest.skip("no environment with DeepSpeed: `oppa env create deepspeed` makes it")
        return [str(made.python), "-m", "torch.distributed.run", *LINES[library].split()[1:]]
    if library in NEEDS:
        pytest.importorskip(NEEDS[library], reason=f"{library} is not installed here")
    starters = {"torchrun": [sys.executable, "-m", "torch.distributed.run"], "python": [sys.executable], "accelerate": ["accelerate"]}
    first, *rest = LINES[library].split()
    return [*starters[first], *rest]


@pytest.mark.parametrize("library", LINES)
def test_a_line_is_tuned_without_a_job_file_and_the_printed_line_runs(library: str, program) -> None:
    line, before = words_of(library), digest(program.folder)
    done = program("tune", "--json", "--study", "s", *LIMITS, *SETTINGS.get(library, []), "--", *line)
    found = json.loads(done.stdout)
    assert digest(program.folder) == before
    assert "your line" in done.stderr
    assert found["best"]["steps_per_s"] >= found["baseline"]["steps_per_s"]
    words = found["launch_line"]["words"]
    assert not [word for word in words if "{" in word]
    ran = subprocess.run(["env", *words], cwd=program.folder, capture_output=True, text=True, timeout=250, check=False)
    assert ran.returncode == 0 and digest(program.folder) != before, ran.stderr
