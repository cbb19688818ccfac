"""The Trainer of Transformers, which saves checkpoints, logs to TensorBoard and W&B, and exports its model."""

import dataclasses
import sys

import torch
import writing
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = writing.model(width)

    def forward(self, x, labels=None):
        return {"loss": (self.linear(x)[:, 0] - labels).pow(2).mean()}


@dataclasses.dataclass
class Own:
    export: str
    width: int = 0


class EndOfSteps(TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        writing.end_step()


args, own = HfArgumentParser((TrainingArguments, Own)).parse_args_into_dataclasses([*sys.argv[1:], "--use_cpu"])
writing.start_tracker(args.output_dir)
data = [{"x": [float(number), 1.0, 2.0, 3.0], "labels": float(number)} for number in range(4096)]


def collate(rows):
    return {key: torch.tensor([row[key] for row in rows]) for key in rows[0]}


trainer = Trainer(model=Model(own.width), args=args, train_dataset=data, data_collator=collate, callbacks=[EndOfSteps()])
trainer.train()
trainer.save_model(own.export)
