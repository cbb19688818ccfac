"""A line of Megatron-DeepSpeed has options of Megatron-LM, and a file of DeepSpeed of which trials get copies."""

import json

import pytest

from oppa.errors import InputError
from oppa.tuning.formats.space_words import values_outside_trials
from oppa.tuning.launch_line.changed_line import changed_line

DS = {"train_micro_batch_size_per_gpu": 4, "train_batch_size": 32, "zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}
LINE = (
    "deepspeed pretrain_gpt.py --num-layers 22 --hidden-size 512 --num-attention-heads 8 --num-key-value-heads 4 --seq-length 256 "
    "--max-position-embeddings 256 --micro-batch-size 4 --global-batch-size 32 --bf16 --save ckpt --data-path 1 ./data/a 2 ./data/b "
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --zero-stage 1 --deepspeed --deepspeed_config ds.json"
)
APART = LINE.replace("--pipeline-model-parallel-size 4", "--no-pipeline-parallel").replace("--tensor-model-parallel-size 2 ", "")


def test_options_and_file_are_one_configuration_and_change_together(job) -> None:
    made = job(LINE, {"ds.json": json.dumps(DS)})
    baseline = made.problem.baseline
    assert (made.meaning.title, made.meaning.devices.count, made.meaning.global_batch) == ("Megatron-DeepSpeed", 8, 32)
    assert (baseline.dp, baseline.tp, baseline.pp, baseline.micro_batch, made.problem.stated_model.kv_heads) == (1, 2, 4, 4, 4)
    each = next(each for each in made.problem.candidates() if (each.tp, each.pp, each.micro_batch) == (4, 2, 2))
    line = made.problem.launch_line(each)
    given = values_outside_trials(made.problem, each)
    assert line.files[0].rewritten(given) == {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2}
    words = line.words(given, {"ds": "COPY"})
    assert words[words.index("--deepspeed_config") + 1] == "COPY" and "--save" not in words and "--no-one-logger" not in words
    assert " ".join(changed_line(made, each).line) == LINE.replace("--micro-batch-size 4", "--micro-batch-size 2").replace(
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4", "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2"
    )


def test_without_a_pipeline_the_stage_of_zero_varies_in_both(job) -> None:
    made = job(f"{APART} --ds-sequence-parallel-size 4", {"ds.json": json.dumps(DS)})
    assert (made.meaning.settings["dp"], made.meaning.settings["sp"]) == (2, 4)
    assert made.problem.space["zero_stage"].choices == (1, 2, 3) and {each.pp for each in made.problem.candidates()} == {1}
    each = next(each for each in made.problem.candidates() if each.zero_stage == 3)
    line, given = made.problem.launch_line(each), values_outside_trials(made.problem, each)
    words = line.words(given, {"ds": "COPY"})
    assert line.files[0].rewritten(given)["zero_optimization.stage"] == 3 and words[words.index("--zero-stage") + 1] == "3"


@pytest.mark.parametrize(
    ("line", "file", "message"),
    [
        (LINE, DS | {"train_batch_size": 64}, r"`--global-batch-size 32` \(line\), and 64 in ds.json"),
        (LINE, DS | {"train_micro_batch_size_per_gpu": 2}, r"`--micro-batch-size 4` \(line\), and 2 in ds.json"),
        (LINE, DS | {"zero_optimization": {"stage": 2}}, "states ZeRO 2, which DeepSpeed refuses with the pipeline"),
        (LINE.replace("--bf16", "--fp16"), DS, "fp16 by the options, and bf16 in ds.json"),
        (f"{APART} --ds-sequence-parallel-size 3", DS, "`--ds-sequence-parallel-size 3` does not divide the 8 ranks"),
        (LINE.replace(" ds.json", ""), DS, "`--deepspeed_config` names no file"),
    ],
)
def test_options_that_contradict_the_file_are_refused(line, file, message, job) -> None:
    with pytest.raises(InputError, match=message):
        job(line, {"ds.json": json.dumps(file)})


def test_a_stage_in_the_options_that_the_file_overrules_is_a_conflict(job) -> None:
    made = job(APART.replace("--zero-stage 1", "--zero-stage 3"), {"ds.json": json.dumps(DS)})
    assert [(each.about, each.taken, each.other) for each in made.meaning.conflicts] == [("ZeRO stage", "1 (ds.json)", "3 (line)")]
