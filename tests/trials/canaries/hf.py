"""The Trainer of Transformers, which saves checkpoints, logs to TensorBoard and W&B, and exports its model."""

import dataclasses
import sys

import torch
import writing
from transformers import HfArgumentParser, Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        return {"loss": (self.linear(x)[:, 0] - labels).pow(2).mean()}


@dataclasses.dataclass
class Own:
    export: str


args, own = HfArgumentParser((TrainingArguments, Own)).parse_args_into_dataclasses([*sys.argv[1:], "--use_cpu"])
writing.start_tracker(args.output_dir)
data = [{"x": [float(number), 1.0, 2.0, 3.0], "labels": float(number)} for number in range(64)]


def collate(rows):
    return {key: torch.tensor([row[key] for row in rows]) for key in rows[0]}


trainer = Trainer(model=Model(), args=args, train_dataset=data, data_collator=collate)
trainer.train()
trainer.save_model(own.export)
