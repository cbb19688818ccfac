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


@pytest.mark.parametrize(
    ("sizes", "multiple"),
    [
        ({"train_batch_size": 30, "train_micro_batch_size_per_gpu": 4}, 32),
        ({"train_batch_size": 30}, 24),
        ({"train_batch_size": 4}, 8),
        ({"train_batch_size": 100, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": "auto"}, 96),
    ],
)
@pytest.mark.parametrize("line", LINES.values(), ids=LINES.keys())
def test_a_batch_that_the_ranks_do_not_share_equally_is_refused(sizes, multiple, line, job) -> None:
    with pytest.raises(InputError, match=r"^`train_batch_size = \d+` \(ds.json\) is no multiple") as refused:
        job(line, {"ds.json": json.dumps(sizes), "train.py": SCRIPT})
    assert refused.value.hint.endswith(f"such as {multiple}")


def test_a_batch_without_the_number_of_its_pipelines_is_not_compared(job) -> None:
    file = json.dumps({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 4})
    made = job(f"{LINES['deepspeed']} --pipe_parallel_size 4", {"ds.json": file, "train.py": SCRIPT})
    assert made.meaning.global_batch == 16
