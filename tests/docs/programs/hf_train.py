"""The Trainer of Transformers on a model of five weights.

It trains on CPUs, where each process would train alone without `--use_cpu`.
"""

import sys

import torch
from transformers import HfArgumentParser, Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        return {"loss": (self.linear(x)[:, 0] - labels).pow(2).mean()}


(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses([*sys.argv[1:], "--use_cpu"])
args.report_to = []
data = [{"x": [float(number), 1.0, 2.0, 3.0], "labels": float(number)} for number in range(64)]


def collate(rows):
    return {key: torch.tensor([row[key] for row in rows]) for key in rows[0]}


trained = Trainer(model=Model(), args=args, train_dataset=data, data_collator=collate)
trained.train()
print(f"took {trained.state.global_step} steps of {args.gradient_accumulation_steps} micro-batches")
