"""A trial of a real library changes no byte of what the given launch line writes; that line itself does.

The programs write checkpoints, logs of TensorBoard and W&B where these are installed, and exported models into one folder. They run
under a hook that records connections to other machines.
"""

import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.libraries.canaries import PROGRAMS, digest, fill
from oppa.problem.job import load_job
from oppa.problem.training import Limits
from oppa.trials.local import LocalLauncher
from oppa.trials.runner import load_runner
from oppa.trials.trial import run_trial
from oppa.trials.trial_folder import TrialSpec
from oppa.tuning.export_best import write_files
from oppa.tuning.formats import export
from tests.connections import Connections
from tests.sampling import nightly
from tests.trials.conftest import STUDY

JOB = """
batch.global_batch = 8
cluster = { devices_per_host = 2, memory_limit = "2 GiB" }
"""
TORCHRUN = "torchrun --nproc-per-node 2"
LINES = {
    "transformers": (
        f"{TORCHRUN} hf.py --output_dir canary/out --save_steps 2 --max_steps 8 --logging_steps 1 {{trackers}} --export canary/export"
        " --per_device_train_batch_size {{micro_batch}} --gradient_accumulation_steps {{num_microbatches}}"
    ),
    "accelerate": (
        "accelerate launch --cpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no accelerated.py --steps 8"
        " --project_dir canary/logs --output_dir canary/out --checkpointing_steps 2 --with_tracking"
        " --batch {{micro_batch}} --accumulate {{num_microbatches}}"
    ),
    "lightning": (
        f"{TORCHRUN} cli.py fit --trainer.accelerator cpu --trainer.devices 2 --trainer.max_steps 8 --trainer.default_root_dir canary/root"
        " --trainer.logger CSVLogger --trainer.logger.save_dir canary/logs --trainer.callbacks+=ModelCheckpoint"
        " --trainer.callbacks.dirpath canary/out --trainer.callbacks.every_n_train_steps 2 --trainer.callbacks+=TQDMProgressBar"
        " --trainer.callbacks.refresh_rate 1 --data.batch_size {{micro_batch}} --trainer.accumulate_grad_batches {{num_microbatches}}"
    ),
    "deepspeed": f"{TORCHRUN} zero.py --steps 8 --save_dir canary/out --deepspeed --deepspeed_config {{ds}}",
    "plain": (
        f"{TORCHRUN} ddp.py --steps 8 --save-dir canary/out --log-dir=canary/logs --weights canary/weights.pt"
        " --batch {{micro_batch}} --accumulate {{num_microbatches}}"
    ),
}
DECLARED = {"transformers": ("--export", "redirect"), "plain": ("--weights", "redirect")}
LONG = ("transformers", "accelerate")
SILENT = ("accelerate",)
"""Their trials write nothing, as saving and tracking are off."""
NEEDS = {"transformers": "transformers", "accelerate": "accelerate", "lightning": "typeshed_client", "deepspeed": "deepspeed"}
FILES = """
[command.files.ds]
path = "ds.json"
keys = { train_micro_batch_size_per_gpu = "{micro_batch}", gradient_accumulation_steps = "{num_microbatches}" }
"""
LIMITS = Limits(trial_time_s=250, grace_s=1, q_max=4)

pytestmark = pytest.mark.slow


@pytest.fixture
def connections(tmp_path: Path) -> Connections:
    return Connections(tmp_path)


@pytest.fixture
def folder(tmp_path: Path, connections: Connections, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the programs and a canary, in which each process records its connections."""
    fill(tmp_path)
    for name, value in {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        **connections.environment,
        "TENSORBOARD_LOGGING_DIR": str(tmp_path / "canary" / "tb"),
        "OMP_NUM_THREADS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("framework", [*(name for name in LINES if name not in LONG), *nightly(*LONG)])
def test_trials_change_no_byte_and_the_line_itself_does(framework: str, folder: Path, connections: Connections) -> None:
    if framework in NEEDS:
        pytest.importorskip(NEEDS[framework])
    text = LINES[framework].replace("{{", "{").replace("}}", "}").replace("{trackers}", _trackers())
    (folder / "job.toml").write_text(JOB + (FILES if framework == "deepspeed" else ""))
    problem = load_job(folder / "job.toml", settings=_settings(framework), argv=shlex.split(text))
    before, configuration = digest(folder), problem.candidates().configuration(0)
    with LocalLauncher(load_runner(problem.runner), study=STUDY, grace_s=1) as launcher:
        spec = TrialSpec.of(problem, configuration, study=STUDY, trial=0, steps=4)
        result = run_trial(launcher, folder / "s" / "trials" / "0", spec, limits=LIMITS)
    assert (result.outcome, result.steps) == ("completed", 4), (result.cause, result.traceback)
    assert digest(folder) == before
    assert framework in SILENT or list((folder / "s" / "trials").rglob("writes/*"))
    assert connections.read() == "" and connections.processes() > 2
    write_files(folder / "best", export("torchrun", problem, configuration))
    ran = subprocess.run(["sh", "best/run.sh"], capture_output=True, text=True, timeout=250, check=False)
    assert ran.returncode == 0 and digest(folder) != before, ran.stderr


def _settings(framework: str) -> list[str]:
    settings = [f"command.framework={framework}", "space.parameters.micro_batch=[1,2]"]
    if framework == "lightning":
        settings.append('command.steps={format="lightning", batches_per_step="{num_microbatches}"}')
    if framework in DECLARED:
        name, kind = DECLARED[framework]
        settings.append(f'command.paths."{name}"={kind}')
    return settings


def _trackers() -> str:
    return "--report_to tensorboard" if runpy.run_path(str(PROGRAMS / "writing.py"))["HAS_TENSORBOARD"] else ""
