"""Run Megatron-LM's own `pretrain_gpt.py` on CPUs, and read what it prints."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from oppa import catalog
from tests.own_trainer.folders import REFERENCE, TOTAL
from tests.own_trainer.own_runs import OwnRun

ON_CPU, MISBEHAVING = (Path(__file__).with_name(name) for name in ("megatron_on_cpu.py", "misbehaving.py"))
MODEL = (
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 --mock-data --vocab-size 255 "
    "--tokenizer-type NullTokenizer --attention-dropout 0 --hidden-dropout 0 --position-embedding-type rope --disable-bias-linear "
    "--untie-embeddings-and-output-weights --normalization RMSNorm"
)
WITHOUT_KERNELS = (
    "--distributed-backend gloo --transformer-impl local --no-persist-layer-norm --no-gradient-accumulation-fusion "
    "--no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion --no-rope-fusion --num-workers 0"
)
TRAINING = "--lr 1e-2 --log-interval 1 --eval-iters 0 --eval-interval 100000 --save-interval 100000"
ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "PYTORCH_JIT": "0"}
LAYOUTS = """
[command.arguments]
micro_batch = ["--micro-batch-size", "{micro_batch}"]
recompute = { none = [], full = ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"] }
"""
_GRADIENT = re.compile(r"iteration +(\d+)/.*?grad norm: +([0-9.]+)")
_ITERATION = re.compile(r"iteration +(\d+)/.*?global batch size: +(\d+).*?lm loss: ([0-9.E+-]+)")


def checkout() -> Path:
    """Return the folder of Megatron-LM's programs, or skip the test."""
    parts = ("megatron", "megatron.core", "megatron.training")
    if not all(importlib.util.find_spec(name) for name in parts):
        pytest.skip("NOT TESTED with Megatron-LM: PYTHONPATH names no checkout of it, or megatron-core is not installed")
    found = importlib.util.find_spec("megatron.training")
    assert found is not None and found.origin is not None
    return Path(found.origin).parents[2]


def program(*words: str, samples: int = TOTAL) -> list[str]:
    """Return the words of a training on CPUs."""
    given = f"{MODEL} {WITHOUT_KERNELS} {TRAINING} --train-samples {samples} --lr-decay-samples {samples}".split()
    return [str(ON_CPU), str(checkout() / "pretrain_gpt.py"), *given, *words]


def torchrun(ranks: int | str) -> list[str]:
    """Return the words that start some ranks of a program."""
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def trained(
    save: Path,
    *words: str,
    batch: int = REFERENCE,
    micro_batch: int = 2,
    ranks: int = 1,
    samples: int = TOTAL,
    attempt: Path | None = None,
    statistics: bool = False,
) -> str:
    """Train as a user does, or in an attempt of a run or a trial, and return what is printed."""
    sizes = ["--global-batch-size", str(batch), "--micro-batch-size", str(micro_batch)]
    given = {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path), **({"OPPA_TRIAL": str(attempt)} if attempt else {})}
    given |= {"GRADIENT_STATISTICS": "1"} if statistics else {}
    argv = [sys.executable, *torchrun(ranks), *program("--save", str(save), *sizes, *words, samples=samples)]
    done = subprocess.run(argv, env=given, cwd=catalog.root(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def iterations(printed: str) -> dict[int, tuple[int, float]]:
    """Return the batch and the loss of each iteration of a process, whose second line has the mean loss of its first two iterations."""
    found = {int(number): (int(batch), float(loss)) for number, batch, loss in _ITERATION.findall(printed)}
    if len(found) > 1:
        (_, (_, first)), (second, (batch, mean)), *_ = found.items()
        found[second] = batch, 2 * mean - first
    return found


def gradient_norms(printed: str) -> dict[int, float]:
    """Return the norm of the mean gradient in each iteration, before it is clipped."""
    return {int(number): float(norm) for number, norm in _GRADIENT.findall(printed)}


class MegatronRun(OwnRun):
    """Runs a job of Megatron-LM that breaks its contract once, in a folder of its own; one rank needs no torchrun."""

    def __init__(self, folder: Path, fault: str, *, samples: int, ranks: int = 1, train: tuple[str, ...] = ()) -> None:
        super().__init__(folder, samples=samples, ranks=ranks, timeout_s=60, train=train)
        self.job.write_text(self.job.read_text() + LAYOUTS)
        variables = [f"{name}={value}" for name, value in {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)}.items()]
        words = program("--global-batch-size", "{global_batch}", "--save", "{folder}/../../trained", samples=samples)
        launch = torchrun("{devices_per_host}") if ranks > 1 else []
        self.command = ["env", *variables, sys.executable, *launch, str(MISBEHAVING), fault, *words]
