"""A framework's file and a job: what the job leaves open is chosen, and what differs is named with both values."""

import json
import tomllib
from pathlib import Path

import pytest

from oppa import catalog
from oppa.errors import InputError, JobError
from oppa.problem.baseline import at_rest, complete
from oppa.problem.command import values_of
from oppa.problem.job_text import with_value
from oppa.trials.runner import require_program
from oppa.tuning.formats import FORMATS
from oppa.tuning.formats.adoption import completed, new_job, settled
from oppa.tuning.formats.job_facts import SPACES, facts_of
from oppa.tuning.formats.megatron_command import BUCKETS_MB

SCRIPT = """
#!/bin/bash
GPUS=8; TP=2
MODEL_ARGS=(
    --num-layers 12 --hidden-size 768 --ffn-hidden-size 3072
    --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024
    --tokenizer-type NullTokenizer --vocab-size 50303 --bf16
    --data-path $DATA --split 949,50,1
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2
    --use-distributed-optimizer --overlap-grad-reduce --ddp-bucket-size 33554432
)
TRAIN="--micro-batch-size 4 --global-batch-size 64 --train-iters 500000 --lr 1e-4"
torchrun --nproc_per_node $GPUS ./pretrain_gpt.py ${MODEL_ARGS[@]} ${PARALLEL_ARGS[@]} $TRAIN
"""
CONFIG = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}
JOB = """\
# A job.
[model]
preset = "tiny-4m"  # small

[batch]
global_batch = 64  # sequences

[cluster]
devices_per_host = 8
device = "H100"
memory_limit = "80 GiB"

[training]
precision = "bf16"
"""
SEARCHED = '\n[runner]\nname = "simulated"\n\n[space]\nname = "{space}"\n'


def adopted(tmp_path: Path, origin: str, files: dict[str, str], job: str = "", take=None):
    """The draft and its problem for files, with a job or without."""
    path, facts = tmp_path / "job.toml", facts_of(origin, files)
    if job:
        path.write_text(job)
    draft = completed(path, facts, origin=origin) if job else new_job(path, facts, origin=origin, source="file")
    draft = settled(draft, facts, FORMATS[origin].parse(draft.problem(), files), origin=origin, take=take)
    return draft, draft.problem()


def deepspeed(**changes) -> dict[str, str]:
    return {"ds.json": json.dumps({**CONFIG, **changes})}


def test_a_script_of_megatron_becomes_a_job_with_its_model_batch_devices_and_launch_line(tmp_path) -> None:
    draft, problem = adopted(tmp_path, "megatron", {"train.sh": SCRIPT})
    model = problem.model
    assert (model.layers, model.hidden, model.heads, model.ffn, model.vocab, model.seq_len) == (12, 768, 12, 3072, 50304, 1024)
    assert not model.gated and model.norm == "layer" and model.tied and model.biases and model.learned_positions == 1024
    assert (problem.global_batch, problem.cluster.devices, problem.training.precision) == (64, 8, "bf16")
    assert (problem.runner.name, problem.space.name) == ("command", "megatron")
    argv = problem.command.argv
    assert argv[:4] == ("torchrun", "--nproc-per-node", "{devices_per_host}", "./pretrain_gpt.py")
    assert argv[argv.index("--split") + 1] == "949,50,1" and "500000" not in argv and "--ddp-bucket-size" not in argv
    assert any("check `[command]`" in note for note in draft.notes)
    assert "--data-path $DATA" in facts_of("megatron", {"train.sh": SCRIPT}).unread


def test_the_launch_line_says_every_configuration_as_megatron_is_read(tmp_path) -> None:
    """Words of a trial, read back as a script, mean the configuration that the trial is of."""
    _, problem = adopted(tmp_path, "megatron", {"train.sh": SCRIPT})
    require_program(type(problem.command)(argv=("true",), arguments=problem.command.arguments), problem.space)
    candidates = problem.candidates()
    for index in range(0, len(candidates), max(1, len(candidates) // 200)):
        configuration = candidates.configuration(index)
        values = values_of(configuration, problem.model, problem.cluster, problem.training, steps=3, folder=tmp_path)
        text = " ".join(problem.command.words(values, {}))
        reading = FORMATS["megatron"].parse(problem, {"line.sh": text})
        assert at_rest(problem.space, complete(problem.space, reading.settings)) == configuration, text


def test_the_sizes_of_buckets_are_those_of_the_search_space(problem_of) -> None:
    assert set(BUCKETS_MB) == set(problem_of("megatron").space["dp_bucket_mb"].values)


def test_a_file_of_deepspeed_becomes_a_job_of_its_runner_on_as_many_devices(tmp_path) -> None:
    draft, problem = adopted(tmp_path, "deepspeed", deepspeed())
    assert (problem.runner.name, problem.space.name) == ("deepspeed", "deepspeed-llama")
    assert (problem.global_batch, problem.cluster.devices, problem.training.precision) == (64, 8, "bf16")
    assert "the file states no model: [model] is a suggestion" in draft.notes


@pytest.mark.parametrize(
    ("kind", "runner"), [("FSDP", "torch"), ("MULTI_GPU", "torch"), ("DEEPSPEED", "deepspeed")], ids=["FSDP", "DDP", "DeepSpeed"]
)
def test_accelerate_is_trained_by_the_runner_that_shards_alike(kind, runner, tmp_path) -> None:
    files = {"a.yaml": f"distributed_type: {kind}\nnum_processes: 4\nnum_machines: 1\nmixed_precision: bf16\n"}
    _, problem = adopted(tmp_path, "accelerate", files)
    assert (problem.runner.name, problem.cluster.devices, problem.training.precision) == (runner, 4, "bf16")


def test_without_a_job_a_format_must_choose_a_runner_and_state_its_model_whole(tmp_path) -> None:
    with pytest.raises(InputError, match="torchtitan does not choose a runner"):
        adopted(tmp_path, "torchtitan", {"recipe.py": "config.x = 1"})
    with pytest.raises(InputError, match="does not state `heads`, `vocab` as a number"):
        adopted(tmp_path, "megatron", {"a.sh": "pretrain_gpt.py --num-layers 2 --hidden-size 8 --seq-length 8 --num-attention-heads $H"})


@pytest.mark.parametrize(("origin", "files"), [("deepspeed", deepspeed()), ("megatron", {"train.sh": SCRIPT})])
def test_a_job_that_chooses_no_runner_gets_the_frameworks_behind_its_own_text(origin, files, tmp_path) -> None:
    job = (
        JOB
        if origin == "deepspeed"
        else JOB.replace('preset = "tiny-4m"  # small', "layers = 12\nhidden = 768\nheads = 12\nffn = 3072\nvocab = 50304\nseq_len = 1024")
    )
    draft, problem = adopted(tmp_path, origin, files, job)
    assert problem.space.name in SPACES[origin] and not draft.rewritten
    assert draft.text == f"{job}\n{draft.added}\n" and f"chosen for {origin}" in draft.notes[0]


def test_a_job_of_the_frameworks_space_is_left_as_it_is(tmp_path) -> None:
    for space, runner in (("deepspeed", "simulated"), ("command", "simulated")):
        job = JOB + SEARCHED.format(space=space).replace("simulated", runner)
        draft, _ = adopted(tmp_path, "deepspeed", deepspeed(), job)
        assert draft.text == job and not draft.notes and not draft.added


DIFFERENT = (
    ({"train_batch_size": 128, "gradient_accumulation_steps": 4}, "the file has a global batch of 128, the job of 64"),
    ({"gradient_accumulation_steps": 1}, "the file has 16 devices on 1 hosts, the job 8 devices on 1 hosts"),
    ({"bf16": {"enabled": False}}, 'the file has precision = "fp32", the job "bf16"'),
)


@pytest.mark.parametrize(("changes", "words"), DIFFERENT, ids=["batch", "devices", "precision"])
def test_what_differs_is_an_error_with_both_values_until_one_is_chosen(changes, words, tmp_path) -> None:
    job, files = JOB + SEARCHED.format(space="deepspeed"), deepspeed(**changes)
    with pytest.raises(InputError) as caught:
        adopted(tmp_path, "deepspeed", files, job)
    assert caught.value.message == words and "`--take file`" in caught.value.hint and "`--take job`" in caught.value.hint
    kept, problem = adopted(tmp_path, "deepspeed", files, job, take="job")
    assert kept.text == job and kept.notes == (f"kept as the job has it: {words}",) and problem.global_batch == 64
    taken, _ = adopted(tmp_path, "deepspeed", files, job, take="file")
    assert taken.text != job and taken.rewritten and "# A job.\n" in taken.text and "# small\n" in taken.text
    again, _ = adopted(tmp_path, "deepspeed", files, taken.text)
    assert again.text == taken.text, "nothing differs any more"


def test_dimensions_are_compared_one_by_one_and_can_be_taken(tmp_path) -> None:
    job = JOB + SEARCHED.format(space="megatron")
    with pytest.raises(InputError) as caught:
        adopted(tmp_path, "megatron", {"train.sh": SCRIPT}, job)
    for line in ("layers = 12, the job 8", "hidden = 768, the job 192", "seq_len = 1024, the job ", "vocab = 50304, the job 256"):
        assert f"the file has {line}" in caught.value.message
    draft, problem = adopted(tmp_path, "megatron", {"train.sh": SCRIPT}, job, take="file")
    assert (problem.model.layers, problem.model.vocab) == (12, 50304) and tomllib.loads(draft.text)["model"]["preset"] == "tiny-4m"


@pytest.mark.parametrize(("origin", "files"), [("deepspeed", deepspeed()), ("megatron", {"train.sh": SCRIPT})])
def test_a_job_of_another_runner_is_said_to_be_one_and_can_be_moved(origin, files, tmp_path) -> None:
    job = JOB + '\n[runner]\nname = "torch"  # as `oppa init` writes it\n'
    with pytest.raises(InputError, match=f"the file is one of {origin}, the job runs `torch` and searches `torch`"):
        adopted(tmp_path, origin, files, job)
    _, problem = adopted(tmp_path, origin, files, job, take="file")
    assert problem.space.name in SPACES[origin] and problem.runner.name == {"deepspeed": "deepspeed", "megatron": "command"}[origin]
    assert adopted(tmp_path, origin, files, job, take="job")[1].space.name == "torch"


def test_a_job_without_a_batch_takes_the_files(tmp_path) -> None:
    job = JOB.replace("[batch]\nglobal_batch = 64  # sequences\n", "") + SEARCHED.format(space="deepspeed")
    draft, problem = adopted(tmp_path, "deepspeed", deepspeed(), job)
    assert problem.global_batch == 64 and draft.notes == ("global_batch = 64, from the file",)


TEXTS = (
    "[batch]\nglobal_batch = 8 # why\n",
    "[ batch ] # here\n\n  global_batch=8\n[cluster]\nhosts = 1\n",
    "batch = {global_batch = 8}\n[cluster]\nhosts = 1",
    'batch = { note = "a, b", global_batch = 8 }\n',
    "batch.global_batch = 8 # why\n",
    "[cluster]\nglobal_batch = 8\n",
    "",
    "[batch]",
    '[batch]\nnote = "x" # global_batch = 8\nglobal_batch = 8\n[cluster]\nglobal_batch = 8',
)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("value", [64, "sixty-four", True])
def test_a_value_is_set_in_a_text_and_nothing_else_is_changed(text, value) -> None:
    changed = with_value(text, "batch", "global_batch", value)
    expected = tomllib.loads(text)
    expected.setdefault("batch", {})["global_batch"] = value
    assert tomllib.loads(changed) == expected
    assert [line.partition("#")[2] for line in changed.splitlines() if "#" in line] == [
        line.partition("#")[2] for line in text.splitlines() if "#" in line
    ]


@pytest.mark.parametrize(
    "text",
    ['"batch" = {global_batch = 8}', 'note = """\n[batch]\nglobal_batch = 8\n"""\n[batch]\nglobal_batch = 8\n'],
    ids=["a name in quotes", "a text that looks like the table"],
)
def test_a_text_that_cannot_be_changed_is_left_to_its_writer(text) -> None:
    with pytest.raises(JobError, match="`global_batch = 64` cannot be set") as caught:
        with_value(text, "batch", "global_batch", 64)
    assert "write it there yourself" in caught.value.hint


def test_the_spaces_of_frameworks_are_in_the_catalog() -> None:
    assert {name for names in SPACES.values() for name in names} <= set(catalog.names("search_spaces"))
