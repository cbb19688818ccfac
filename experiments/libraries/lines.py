"""Launch lines of real libraries as their documents have them, with tiny models of which each has at most twelve configurations."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.libraries.canaries import fill
from oppa import catalog
from oppa.errors import EnvironmentLackingError
from oppa.trials.environments import environment

PYTHON = "LIBRARIES_PYTHON"
"""Variable that names an interpreter with the libraries, if they are in an environment apart; by default it is oppa's own."""
PACKAGES = ("torch", "transformers", "accelerate", "lightning", "deepspeed", "torchtitan", "megatron-core")
BATCH = "batch.global_batch=16"
STARTERS: Mapping[str, tuple[str, ...]] = {
    "torchrun": ("-m", "torch.distributed.run"),
    "accelerate launch": ("-m", "accelerate.commands.launch"),
    "python": (),
}
"""Words after the interpreter that a starter stands for: the libraries may be in no environment that is on PATH."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Describes a launch line of one library."""

    line: str
    settings: tuple[str, ...] = ()
    """Changes of the job, as `--set` takes them: batches, paths of the program's own, and fewer values."""
    packages: tuple[str, ...] = ()
    """Modules that the line needs besides torch."""
    installing: str = ""
    """Commands that bring it, as a hint."""
    files: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """Keys of JSON files in the folder that have other values."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Variables that the program needs on CPUs."""

    @property
    def is_installed(self) -> bool:
        """Return whether the line can be started."""
        return Path(self.interpreter).is_file() and all(has(self.interpreter, each) for each in self.packages)

    @property
    def interpreter(self) -> str:
        """Return the Python that has the library; empty if an environment is missing."""
        if "deepspeed" not in self.packages:
            return libraries_python()
        made = environment(catalog.root() / "runners" / "deepspeed")  # oppa makes that one
        return str(made.python) if made is not None and made.state == "ready" else ""

    @property
    def words(self) -> list[str]:
        """Return the words of the line."""
        starter = next(each for each in STARTERS if self.line.startswith(f"{each} "))
        return [self.interpreter, *STARTERS[starter], *self.line.removeprefix(starter).split()]

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment of trials and runs: one thread for each rank, and an own folder of TensorBoard."""
        return {**os.environ, "OMP_NUM_THREADS": "1", "TENSORBOARD_LOGGING_DIR": "canary/tb", **self.environment}

    @property
    def versions(self) -> dict[str, str]:
        """Return the versions of the packages that the line runs on."""
        return versions(self.interpreter)

    def fill(self, folder: Path) -> None:
        """Write the programs, their files and the canaries into a folder."""
        fill(folder)
        for name, values in self.files.items():
            path = folder / name
            path.write_text(json.dumps({**json.loads(path.read_text()), **values}, indent=2))


LIBRARIES: Mapping[str, Library] = {
    "transformers": Library(
        line=(
            "torchrun --nproc_per_node 2 hf.py --output_dir canary/out --save_steps 40 --max_steps 120 --report_to none --width 1024"
            " --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --ddp_bucket_cap_mb 25 --dataloader_num_workers 0"
            " --export canary/export"
        ),
        settings=(
            'command.paths."--export"=redirect',
            'space.parameters.recompute=["none"]',
            "space.parameters.dp_bucket_mb=[25]",
            "space.parameters.dataloader_num_workers=[0, 2]",
        ),
        packages=("transformers",),
        installing="run `pip install transformers`",
    ),
    "accelerate": Library(
        line=(
            "accelerate launch --cpu --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no accelerated.py --steps 120"
            " --project_dir canary/logs --output_dir canary/out --checkpointing_steps 40 --with_tracking --width 1024"
            " --batch {micro_batch=1:1,2,4,8} --accumulate {num_microbatches} --threads {threads=1:1,2}"
        ),
        settings=(BATCH,),
        packages=("accelerate",),
        installing="run `pip install accelerate`",
    ),
    "lightning": Library(
        line=(
            "python cli.py fit --trainer.accelerator cpu --trainer.devices 2 --trainer.strategy ddp --trainer.max_steps 120"
            " --trainer.default_root_dir canary/root --model.width 1024 --data.batch_size 1 --data.num_workers 0"
            " --trainer.accumulate_grad_batches 8"
        ),
        settings=("space.parameters.num_workers=[0, 2]",),
        packages=("lightning", "typeshed_client"),
        installing="run `pip install lightning 'jsonargparse[signatures]'`",
    ),
    "deepspeed": Library(
        line="torchrun --nproc_per_node 2 zero.py --steps 120 --width 1024 --save_dir canary/out --deepspeed --deepspeed_config ds.json",
        packages=("deepspeed",),
        installing="run `oppa env create deepspeed`",
        files={"ds.json": {"gradient_accumulation_steps": 4}},
    ),
    "plain": Library(
        line=(
            "torchrun --nproc_per_node 2 ddp.py --steps 120 --save-dir canary/out --log-dir=canary/logs --weights canary/weights.pt"
            " --width 1024 --batch {micro_batch=1:1,2,4,8} --accumulate {num_microbatches} --threads {threads=1:1,2}"
        ),
        settings=(BATCH, 'command.paths."--weights"=redirect'),
    ),
    "torchtitan": Library(
        line=(
            "torchrun --nproc_per_node 2 titan.py --module small_llama --config small_llama --dump_folder canary/out --checkpoint.enable"
            " --checkpoint.interval 40 --metrics.enable_tensorboard --training.steps 60 --training.seq_len 64"
            " --training.local_batch_size 1 --training.global_batch_size 16 --parallelism.tensor_parallel_degree 1"
            " --parallelism.fsdp_reshard_after_forward never"
        ),
        settings=("space.parameters.micro_batch=[1, 4, 8]",),
        packages=("torchtitan", "oppa_client"),
        installing="run `pip install torchtitan==0.3.0 triton ./client`",
    ),
    "megatron": Library(
        line=(
            "torchrun --nproc_per_node 2 pretrain_gpt.py --save canary/out --save-interval 40 --tensorboard-dir canary/tb --num-layers 2"
            " --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --position-embedding-type rope"
            " --mock-data --vocab-size 255 --tokenizer-type NullTokenizer --disable-bias-linear --untie-embeddings-and-output-weights"
            " --normalization RMSNorm --attention-dropout 0 --hidden-dropout 0 --lr 1e-3 --train-iters 120 --eval-iters 0"
            " --eval-interval 1000 --num-workers 0 --distributed-backend gloo --transformer-impl local --no-persist-layer-norm"
            " --no-gradient-accumulation-fusion --no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion --no-rope-fusion"
            " --global-batch-size 16 --micro-batch-size 1 --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1"
        ),
        settings=(
            "space.parameters.tp=[1]",  # sequence parallelism, which comes with more, requires Transformer Engine
            "space.parameters.micro_batch=[1, 4, 8]",
            'space.parameters.schedule=["1f1b"]',
            'space.parameters.recompute=["none"]',
            "space.parameters.overlap_zero_comm=[false]",
            "space.parameters.overlap_zero_allgather=[false]",
            "space.parameters.dp_bucket_mb=[4096]",
        ),
        packages=("megatron.core", "megatron.training"),
        installing=(
            "run `pip install megatron-core==0.16.1 einops psutil regex six tensorboard`, and name a checkout of Megatron-LM `core_v0.16.1`"
            " without its `megatron/core` in `PYTHONPATH`"
        ),
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1", "TORCHDYNAMO_DISABLE": "1", "PYTORCH_JIT": "0"},
    ),
}
"""Launch lines by library."""


def libraries_python() -> str:
    """Return the Python that the variable names, and by default that of oppa."""
    return os.environ.get(PYTHON, sys.executable)


def versions(interpreter: str) -> dict[str, str]:
    """Return the versions of the libraries that an interpreter has."""
    listed = f"{{each.name: each.version for each in distributions() if each.name in {PACKAGES}}}"
    code = f"import json; from importlib.metadata import distributions; print(json.dumps({listed}))"
    done = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=True)
    return dict(sorted(json.loads(done.stdout).items()))


@functools.cache
def has(interpreter: str, module: str) -> bool:
    """Return whether an interpreter finds a module."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([interpreter, "-c", code], check=False).returncode == 0


def require_installed(names: list[str]) -> None:
    """Raise EnvironmentLackingError if one of these libraries is missing."""
    lacking = [name for name in names if not LIBRARIES[name].is_installed]
    if not lacking:
        return
    hints = [LIBRARIES[name].installing for name in lacking]
    raise EnvironmentLackingError(f"not installed: {', '.join(lacking)}", hint=f"{'; '.join(hints)}; or name others by `--tasks`")
