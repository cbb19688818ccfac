"""A user's program around `OppaTrainer`: a tiny Llama on distinguishable samples, and a callback that writes oppa's requests.

It runs in a test's process or under torchrun, and saves what its rank saw.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import ParallelismConfig
from oppa_client import run_files
from oppa_client.transformers import OppaTrainer
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from oppa.training import GradientStatistics, check_gradient_statistics
from tests.client import fsdp_on_cpu

SIZE, LENGTH, SEED = 50, 8, 3
"""Samples of the data set, tokens of a sample, and the seed of everything."""
DEFAULTS: dict[str, Any] = {
    "seed": SEED,
    "num_train_epochs": 2,
    "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 6,
    "gradient_accumulation_steps": 4,
    "learning_rate": 0.01,
    "warmup_steps": 3,
    "weight_decay": 0.1,
    "adam_epsilon": 1e-4,
    "logging_steps": 1,
    "eval_strategy": "steps",
    "eval_steps": 4,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "dataloader_pin_memory": False,
}


class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Samples whose first token is their number. How many of their tokens count differs, except in a set that is evaluated."""

    def __init__(self, size: int = SIZE) -> None:
        generator = torch.Generator().manual_seed(size)
        self.tokens = torch.randint(64, 96, (size, LENGTH), generator=generator)
        self.tokens[:, 0] = torch.arange(size)
        self.labels = self.tokens.clone()
        for number in range(size if size == SIZE else 0):
            self.labels[number, LENGTH - number % 5 :] = -100

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


def model(dropout: float = 0.0) -> LlamaForCausalLM:
    torch.manual_seed(SEED)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 96}
    return LlamaForCausalLM(LlamaConfig(**sizes, attention_dropout=dropout, attn_implementation="eager"))


class Classifier(LlamaForSequenceClassification):
    """Returns a mean loss, although it takes the arguments of a loss, as many models of Transformers do."""

    def __init__(self, dropout: float = 0.0) -> None:
        torch.manual_seed(SEED)
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 96}
        super().__init__(LlamaConfig(**sizes, attention_dropout=dropout, attn_implementation="eager", pad_token_id=1))
        self.loss_type = "ForSequenceClassification"  # found by the name of a class of Transformers
        self.norm = torch.nn.BatchNorm1d(1, affine=False)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, **options: Any) -> Any:
        self.norm(input_ids.float().view(-1, 1))
        return super().forward(input_ids, labels=labels[:, 0] % 2, **options)


class Watched(OppaTrainer):
    """Notes the samples and the learning rate of each step."""

    steps: list[dict[str, Any]]

    def training_step(self, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        if not self._empty:
            self.steps[-1]["samples"] += inputs["input_ids"][:, 0].tolist()
        return super().training_step(model, inputs, *rest, **named)


class Measured(Watched):
    """Measures the gradient noise scale, after a check on the wrapped model."""

    def gradient_statistics(self, model: Any) -> GradientStatistics:
        own = [self.args.process_index, 7, 11], [13 + self.args.process_index]
        micro_batches = [torch.utils.data.default_collate([Samples()[index] for index in each]) for each in own]
        losses = [lambda each=each: model(**each).loss * len(each["labels"]) / 4 for each in micro_batches]
        check_gradient_statistics(model, losses, [3, 1], tolerance=1e-4)
        return GradientStatistics(model)


class Requests(TrainerCallback):
    """Writes oppa's requests before given steps, as its supervisor does between two steps.

    Args:
        trainer: Trainer whose steps are noted.
        asked: For each step, the global batch and the micro-batch to ask for.
        leave_at: Step at which to ask to leave.
        first_number: Number of the first plan to ask for.
    """

    def __init__(self, trainer: Watched, asked: dict[int, tuple[int, int]], leave_at: int | None, first_number: int) -> None:
        self.trainer, self.asked, self.leave_at, self.first_number = trainer, asked, leave_at, first_number
        trainer.steps = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        rate = self.trainer.optimizer.param_groups[0]["lr"]
        self.trainer.steps.append({"step": state.global_step, "samples": [], "rate": rate, "collectives": collectives()})
        folder = os.environ.get("OPPA_TRIAL")
        if folder is None or args.process_index:
            return
        if state.global_step in self.asked:
            batch, micro_batch = self.asked[state.global_step]
            number = self.first_number + sorted(self.asked).index(state.global_step)
            request = {"number": number, "global_batch": batch, "micro_batch": micro_batch, "accumulation": 1}
            run_files.write(Path(folder), run_files.ASKED.format(number), request)
        if state.global_step == self.leave_at:
            run_files.write(Path(folder), run_files.LEAVE, {"reason": "layout", "deadline_s": 60.0})


class StopsEarly(TrainerCallback):
    """Ends the training after a step, as a callback for early stopping does."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop |= state.global_step == self.after


def collectives() -> int:
    """Return how many collectives this rank has begun in the default group, those of DDP and FSDP included."""
    return dist.group.WORLD._get_sequence_number_for_group() if dist.is_initialized() else 0


def trainer(
    folder: Path,
    kind: type[Trainer] = Watched,
    *,
    asked: dict[int, tuple[int, int]] | None = None,
    leave_at: int | None = None,
    stop_after: int | None = None,
    first_number: int = 2,
    dropout: float = 0.0,
    model_is: torch.nn.Module | None = None,
    **changed: Any,
) -> Any:
    args = TrainingArguments(output_dir=str(folder / "output"), **{**DEFAULTS, **changed})
    made = kind(model=model_is or model(dropout), args=args, train_dataset=Samples(), eval_dataset=Samples(12))
    made.add_callback(Requests(made, asked or {}, leave_at, first_number))
    if stop_after is not None:
        made.add_callback(StopsEarly(stop_after))
    return made


def outcome(made: Any) -> dict[str, Any]:
    """Return what a rank saw, its weights and its optimizer's state."""
    seen = {"steps": made.steps, "logs": made.state.log_history}
    if made.is_fsdp_enabled and not torch.distributed.is_initialized():
        return seen  # the ranks have left, and no rank has all of the state
    optimizer = made.optimizer.state_dict()["state"]
    return {
        **seen,
        "weights": {name: whole(value) for name, value in made.accelerator.unwrap_model(made.model).state_dict().items()},
        "moments": {key: {name: whole(value) for name, value in each.items()} for key, each in optimizer.items()},
    }


def whole(value: Any) -> torch.Tensor:
    """Return a copy of a tensor, of which ranks may have shards."""
    tensor = torch.as_tensor(value).detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()


def train(made: Any) -> dict[str, Any]:
    """Train until the end, or until the program leaves."""
    try:
        made.train()
    except SystemExit as end:
        assert end.code == 0
    return outcome(made)


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("options", type=json.loads, nargs="?", default={})
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--recompute", default="none")
    parser.add_argument("--stop-after", type=int, default=None)
    given = parser.parse_args()
    layout = {"per_device_train_batch_size": given.micro_batch, "activation_checkpointing": given.recompute == "full"}
    options = {**layout, "stop_after": given.stop_after, **given.options}
    kind = {"plain": Trainer, "watched": Watched, "measured": Measured}[options.pop("kind", "watched")]
    if "fsdp_config" in options:
        fsdp_on_cpu.allow()
        options["fsdp"] = True
    if "parallelism_config" in options:
        options["parallelism_config"] = ParallelismConfig(**options["parallelism_config"])
    options["asked"] = {int(step): tuple(sizes) for step, sizes in options.pop("asked", {}).items()}
    if options.pop("classifies", False):
        options["model_is"] = Classifier()
    seen = train(trainer(given.folder, kind, **options))
    torch.save(seen, given.folder / f"{given.name}-{os.environ.get('RANK', '0')}.pt")


if __name__ == "__main__":
    main()
