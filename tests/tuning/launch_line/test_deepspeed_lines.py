"""A file of DeepSpeed states its batch by the data-parallel ranks, which are fewer than the devices under sequence parallelism."""

import json

import pytest

from oppa.errors import InputError

FILE = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "sequence_parallel_size": 4}
LINES = {
    "deepspeed": "torchrun --nproc-per-node 8 train.py --deepspeed_config ds.json",
    "accelerate": "accelerate launch --num_processes 8 --use_deepspeed --deepspeed_config_file ds.json train.py --bs '{micro_batch=1:1,2}'",
}
SCRIPT = "import deepspeed\ndeepspeed.initialize(training_data=data)\nprint('step', 1)\n"


@pytest.mark.parametrize("line", LINES.values(), ids=LINES.keys())
def test_ranks_that_share_a_sequence_have_one_batch(line, job) -> None:
    made = job(line, {"ds.json": json.dumps(FILE), "train.py": SCRIPT})
    assert (made.problem.baseline.dp, made.meaning.settings["sp"], made.meaning.global_batch) == (2, 4, 8)
    for each in made.problem.candidates():
        (keys,) = [keys for _, keys in made.files_of(each)]
        assert keys["train_micro_batch_size_per_gpu"] * keys["gradient_accumulation_steps"] * 2 == keys.get("train_batch_size", 8) == 8


def test_ranks_that_share_a_sequence_divide_the_devices(job) -> None:
    with pytest.raises(InputError, match=r"`sequence_parallel_size = 3` .* does not divide the 8 ranks"):
        job(LINES["deepspeed"], {"ds.json": json.dumps({**FILE, "sequence_parallel_size": 3}), "train.py": SCRIPT})
