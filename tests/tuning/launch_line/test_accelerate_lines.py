"""A line of accelerate has one number of micro-batches, also where its file states it for DeepSpeed as `accelerate config` writes it."""

import pytest

from oppa.errors import InputError

FILE = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {gradient_accumulation_steps: 4, zero_stage: 2}\n"
PARSER = "from transformers import HfArgumentParser, Trainer, TrainingArguments\nHfArgumentParser(TrainingArguments)\n"
TRAINER = "sft.py --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --output_dir out"
KEY = "deepspeed_config.gradient_accumulation_steps"


@pytest.mark.parametrize(
    ("line", "file", "expected"),
    [
        (TRAINER, FILE, {1: 8, 2: 4, 4: 2, 8: 1}),
        (f"--zero_stage 3 {TRAINER}", FILE, {1: 8, 2: 4, 4: 2, 8: 1}),
        ("own.py --bs '{micro_batch=2:2,8}' --acc '{num_microbatches}'", FILE, {2: 4, 8: 1}),
        (TRAINER, FILE.replace("_steps: 4", "_steps: auto"), {}),
        ("own.py --workers '{workers=2:2,8}'", FILE, {}),
    ],
)
def test_copies_of_the_file_have_the_micro_batches_of_the_program(line, file, expected, job) -> None:
    made = job(f"accelerate launch --config_file a.yaml {line}", {"a.yaml": file, "sft.py": PARSER}, settings=["batch.global_batch=64"])
    written = {each.micro_batch: keys.get(KEY) for each in made.problem.candidates() for _, keys in made.files_of(each)}
    assert {micro: steps for micro, steps in written.items() if steps is not None} == expected


def test_micro_batches_in_front_of_the_program_are_refused(job) -> None:
    with pytest.raises(InputError, match="has one value in all trials"):
        job(f"accelerate launch --config_file a.yaml --gradient_accumulation_steps 4 {TRAINER}", {"a.yaml": FILE, "sft.py": PARSER})
