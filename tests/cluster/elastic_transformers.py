"""Train a tiny Llama with `OppaTrainer` on any number of ranks; each sample takes as long as stated, so that more ranks are faster.

Samples take no longer than they must once the output folder has the file `hurry`. Rank r appends its attempt, and the numbers of its
samples, to a file of its own.
"""

import argparse
import json
import os
import time
from pathlib import Path

import oppa_client
import torch
from oppa_client.transformers import OppaTrainer
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

PIECES = (torch.arange(64)[:, None] + torch.arange(8)) % 16
"""Sixty-four pieces of eight tokens."""


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return len(PIECES)

    def __getitem__(self, index):
        return {"input_ids": PIECES[index], "labels": PIECES[index]}


class Logged(OppaTrainer):
    sample_s = 0.0

    def _take_step(self, model, run):
        plan, rank, ranks = run.plan, self.args.process_index, self.args.world_size
        numbers = [number for part in plan.micro_batches(rank, ranks) for number in part]
        time.sleep(0.0 if Path(self.args.output_dir, "hurry").exists() else self.sample_s * len(numbers))
        with Path(self.args.output_dir, f"samples-{rank}.jsonl").open("a") as log:
            log.write(json.dumps([Path(os.environ["OPPA_TRIAL"]).name, plan.step, numbers]) + "\n")
        return super()._take_step(model, run)


def llama():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 16}
    return LlamaForCausalLM(LlamaConfig(**sizes))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--sample-s", type=float, default=0.0)
    parser.add_argument("--late-start", action="store_true", help="start on other hosts only after the present ranks have left")
    options = parser.parse_args()
    if not options.late_start:
        oppa_client.wait_for_devices()
    torch.set_num_threads(1)
    options.output.mkdir(parents=True, exist_ok=True)
    arguments = TrainingArguments(
        output_dir=str(options.output),
        per_device_train_batch_size=options.micro_batch,
        max_steps=10,
        seed=0,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    trainer = Logged(model=llama(), args=arguments, train_dataset=Tokens())
    trainer.sample_s = options.sample_s
    trainer.train()


if __name__ == "__main__":
    main()
