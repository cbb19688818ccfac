"""Train a tiny classifier around Accelerate and Lightning, as users' programs do, on distinguishable samples and under oppa's requests.

The programs run in a test's process or under torchrun, and save what their rank saw.
"""

import os
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from lightning.pytorch.strategies import ModelParallelStrategy
from oppa_client import run_files
from oppa_client.accelerate import OppaTraining
from oppa_client.lightning import OppaTrainer
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

from oppa.training import GradientStatistics
from tests.client import fsdp_on_cpu
from tests.rank_arguments import rank_arguments

SIZE, INPUTS, CLASSES, SEED = 50, 8, 4, 3
"""Samples of the data set, numbers of a sample, classes, and the seed of everything."""
RATE, EPSILON = 0.01, 1e-4


def data(size: int = SIZE) -> TensorDataset:
    """Return samples with their numbers."""
    generator = torch.Generator().manual_seed(size)
    labels = torch.randint(0, CLASSES, (size,), generator=generator)
    return TensorDataset(torch.arange(size), torch.randn(size, INPUTS, generator=generator), labels)


def model(dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(INPUTS, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, CLASSES))


def linear(at: float) -> float:
    """Return the factor of the learning rate: a warm-up over 3 steps, and a decay to the end of 12."""
    return at / 3 if at < 3 else (12 - at) / 9


def schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, linear)


class StepRecorder:
    """Notes the samples of each step, and writes oppa's requests in given steps, as its supervisor does.

    Args:
        asked: For each step, the global batch and the micro-batch to ask for.
        leave_at: Step at which to ask to leave.
        first_number: Number of the first plan to ask for.
    """

    def __init__(self, asked: dict[int, tuple[int, int]] | None, leave_at: int | None, first_number: int) -> None:
        self.asked, self.leave_at, self.first_number = asked or {}, leave_at, first_number
        self.steps: dict[int, list[int]] = {}
        self.evaluations: dict[int, float] = {}

    def see(self, step: int, numbers: torch.Tensor, size: int) -> None:
        """Note the samples of a micro-batch, of which an empty one has none."""
        folder = os.environ.get("OPPA_TRIAL")
        if step not in self.steps and folder and os.environ.get("RANK", "0") == "0":
            if step in self.asked:
                number = self.first_number + sorted(self.asked).index(step)
                (batch, micro_batch) = self.asked[step]
                request = {"number": number, "global_batch": batch, "micro_batch": micro_batch, "accumulation": 1}
                run_files.write(Path(folder), run_files.ASKED.format(number), request)
            if step == self.leave_at:
                run_files.write(Path(folder), run_files.LEAVE, {"reason": "layout", "deadline_s": 60.0})
        self.steps.setdefault(step, []).extend(numbers.tolist()[:size])


def with_accelerate(
    folder: Path, recorder: StepRecorder, *, measured: bool = False, dropout: float = 0.0, **changed: Any
) -> dict[str, Any]:
    """Train with a loop around Accelerate, and return what was seen."""
    shards = {}
    if changed.pop("shard", False):
        fsdp_on_cpu.allow()
        shards = {"fsdp_plugin": FullyShardedDataParallelPlugin(fsdp_version=2)}
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4, **shards)
    made = model(dropout)
    optimizer = torch.optim.AdamW(made.parameters(), lr=RATE, eps=EPSILON)
    made, optimizer = accelerator.prepare(made, optimizer)
    options = {"scheduler": schedule(optimizer.optimizer), "epochs": 2, "seed": SEED, "checkpoints": folder / "output", **changed}
    loader = options.pop("loader", DataLoader(data(), batch_size=2, shuffle=True))
    statistics = GradientStatistics(made) if measured else None
    training = OppaTraining(accelerator, made, optimizer, loader, statistics=statistics, **options)
    held_out = data(12).tensors
    for numbers, inputs, labels in training:
        recorder.see(training._plan.step, numbers, training._sizes[training._passes])
        with accelerator.accumulate(made):
            training.backward(nn.functional.cross_entropy(made(inputs), labels))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(made.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if training.passed(4):
            made.eval()
            with training.paused("evaluation"), torch.no_grad():
                recorder.evaluations[len(recorder.steps)] = nn.functional.cross_entropy(made(held_out[1]), held_out[2]).item()
            made.train()
    return {**seen(recorder, accelerator.unwrap_model(made), optimizer.optimizer), "samples": training.samples}


class Module(lightning.LightningModule):
    """Trains the same classifier with Lightning."""

    def __init__(self, recorder: StepRecorder, dropout: float) -> None:
        super().__init__()
        self.recorder, self.layers, self.factor = recorder, model(dropout), 1.0

    def configure_model(self) -> None:
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])
            fully_shard(self, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        numbers, inputs, labels = batch
        if self.trainer.oppa_run:
            now = self.trainer.callbacks[-1]._now
            self.recorder.see(now.plan.step, numbers, now.sizes[now.index])
        else:
            self.recorder.see(self.trainer.global_step, numbers, len(numbers))
        return nn.functional.cross_entropy(self.layers(inputs), labels)

    def validation_step(self, batch: Any, _: int) -> None:
        if not self.trainer.sanity_checking:
            self.recorder.evaluations[self.trainer.global_step] = nn.functional.cross_entropy(self.layers(batch[1]), batch[2]).item()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=RATE, eps=EPSILON)
        return [optimizer], [{"scheduler": schedule(optimizer), "interval": "step"}]


class Measured(OppaTrainer):
    """Measures the gradient noise scale."""

    def gradient_statistics(self, model: Any) -> GradientStatistics:
        return GradientStatistics(model)


def with_lightning(folder: Path, recorder: StepRecorder, *, measured: bool = False, dropout: float = 0.0, **changed: Any) -> dict[str, Any]:
    """Train with Lightning, and return what was seen."""
    lightning.seed_everything(SEED, verbose=False)
    options: dict[str, Any] = {
        "accelerator": "cpu",
        "strategy": "ddp" if "RANK" in os.environ else "auto",
        "max_epochs": 2,
        "gradient_clip_val": 1.0,
        "default_root_dir": folder / "output",
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,  # each rank evaluates all samples
        **changed,
    }
    if options["strategy"] == "fsdp2":
        options["strategy"] = ModelParallelStrategy(data_parallel_size=int(os.environ["WORLD_SIZE"]), tensor_parallel_size=1)
    loader = options.pop("loader", DataLoader(data(), batch_size=2, shuffle=True))
    module = options.pop("module", Module)(recorder, dropout)
    trainer = (Measured if measured else options.pop("kind", OppaTrainer))(**options)
    trainer.fit(module, loader, DataLoader(data(12), batch_size=12))
    return seen(recorder, module.layers, module.optimizers().optimizer)


def seen(recorder: StepRecorder, trained: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what a rank saw, its weights and its optimizer's moments."""
    moments = {key: {name: whole(value) for name, value in each.items()} for key, each in optimizer.state_dict()["state"].items()}
    weights = {name: whole(value) for name, value in trained.state_dict().items()}
    return {"steps": list(recorder.steps.values()), "evaluations": recorder.evaluations, "weights": weights, "moments": moments}


def whole(value: Any) -> torch.Tensor:
    tensor = torch.as_tensor(value).detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()


PROGRAMS = {"accelerate": with_accelerate, "lightning": with_lightning}


def train(name: str, folder: Path, **options: Any) -> dict[str, Any]:
    """Train until the end, or until the program leaves."""
    requests = {key: options.pop(key, None) for key in ("asked", "leave_at")}
    recorder = StepRecorder(**requests, first_number=options.pop("first_number", 2))
    try:
        return PROGRAMS[name](folder, recorder, **options)
    except SystemExit as end:
        assert end.code == 0
        return {"steps": list(recorder.steps.values()), "evaluations": recorder.evaluations}


def main() -> None:
    torch.set_num_threads(1)
    folder, name, options = rank_arguments()
    options["asked"] = {int(step): tuple(sizes) for step, sizes in options.pop("asked", {}).items()}
    found = train(options.pop("library"), folder, **options)
    torch.save(found, folder / f"{name}-{os.environ.get('RANK', '0')}.pt")
    sys.stdout.flush()
    os._exit(0)  # skips the end of gloo's threads, which aborts now and then


if __name__ == "__main__":
    main()
