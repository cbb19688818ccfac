"""What files and defaults of accelerate, Transformers and TRL state is the present configuration."""

import json

import pytest

from tests.tuning.launch_line.examples import FSDP

DS = json.dumps(
    {
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
        "gradient_accumulation_steps": 4,
        "train_micro_batch_size_per_gpu": 2,
        "train_batch_size": "auto",
    }
)
NAMES_DS = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"
HYBRID = "distributed_type: FSDP\nnum_machines: 2\nnum_processes: 16\nfsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}\n"
BATCH = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --output_dir out"
PARSER = "from transformers import HfArgumentParser, Trainer, TrainingArguments\nHfArgumentParser(TrainingArguments)\n"
BY_DS = {"zero_stage": (3, "ds.json"), "offload_optimizer": ("cpu", "ds.json"), "precision": ("bf16", "ds.json")}


def stated(job) -> dict[str, tuple[object, str]]:
    """Return what was understood with its origin."""
    meaning = job.meaning
    found = {**meaning.settings, "precision": meaning.precision}
    return {name: (value, meaning.origins.get(name, "")) for name, value in found.items()}


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        (f"--config_file a.yaml train.py {BATCH}", {"a.yaml": NAMES_DS, "ds.json": DS}, {**BY_DS, "micro_batch": (2, "line")}),
        ("--config_file a.yaml train.py", {"a.yaml": NAMES_DS, "ds.json": DS}, {**BY_DS, "micro_batch": (2, "ds.json")}),
        (f"--num_processes 8 --use_deepspeed --deepspeed_config_file ds.json train.py {BATCH}", {"ds.json": DS}, BY_DS),
        (
            f"--num_processes 8 --zero_stage 3 --mixed_precision fp16 --use_deepspeed --deepspeed_config_file ds.json train.py {BATCH}",
            {"ds.json": '{"zero_optimization": {"stage": "auto"}}'},
            {"zero_stage": (3, "line"), "precision": ("fp16", "line")},
        ),
        ("--config_file a.yaml t.py", {"a.yaml": HYBRID}, {"zero_stage": (3, "a.yaml"), "dp_replicate": (2, "a.yaml")}),
        ("--config_file a.yaml t.py", {"a.yaml": HYBRID.replace("HYBRID_SHARD", "5")}, {"zero_stage": (2, "a.yaml")}),
        (
            "--config_file a.yaml t.py --lr 1",
            {"a.yaml": FSDP, "t.py": PARSER},
            {"micro_batch": (8, "default of Transformers"), "zero_stage": (3, "a.yaml")},
        ),
    ],
)
def test_accelerate_takes_what_its_files_state(line, files, expected, job) -> None:
    assert {**stated(job(f"accelerate launch {line}", files)), **expected} == stated(job(f"accelerate launch {line}", files))


def test_the_batch_in_a_file_of_deepspeed_is_that_of_a_program_of_one_s_own(job) -> None:
    made = job("accelerate launch --config_file a.yaml t.py --b {micro_batch=2:1,2}", {"a.yaml": NAMES_DS, "ds.json": DS})
    assert made.problem.global_batch == 64
    (file,) = made.problem.command.files
    assert (
        file.rewritten({"micro_batch": 1, "zero_stage": 2, "num_microbatches": 8, "global_batch": 64})["gradient_accumulation_steps"] == 8
    )


def test_a_file_of_deepspeed_is_json_whatever_its_suffix(job) -> None:
    made = job(f"accelerate launch --num_processes 8 --use_deepspeed --deepspeed_config_file ds.conf t.py {BATCH}", {"ds.conf": DS})
    assert "{ds}" in made.problem.command.argv and made.problem.baseline.zero_stage == 3


def test_shards_within_a_host_stay_there(job) -> None:
    made = job("accelerate launch --config_file a.yaml t.py", {"a.yaml": HYBRID})
    (file,) = made.problem.command.files
    assert [file.rewritten({"zero_stage": stage}) for stage in (2, 3)] == [
        {"fsdp_config.fsdp_sharding_strategy": name} for name in ("HYBRID_SHARD_ZERO2", "HYBRID_SHARD")
    ]
