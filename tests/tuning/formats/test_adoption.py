"""A framework's file and a job: what the job leaves open is chosen, and what differs is named with both values."""

import dataclasses
import json
import tomllib

import pytest

from oppa import catalog
from oppa.errors import InputError, JobError
from oppa.problem.baseline import at_rest, complete
from oppa.problem.job_text import with_value
from oppa.problem.presets import PRESETS
from oppa.problem.trial_values import values_of
from oppa.trials.runner import require_program
from oppa.tuning.formats import FORMATS, export
from oppa.tuning.formats.adoption import unnamed_knobs
from oppa.tuning.formats.job_facts import SPACES, facts_of
from oppa.tuning.formats.megatron_command import BUCKETS_MB
from tests.tuning.formats.adopted_jobs import JOB, LLAMA, OWN, adopted, launch_line

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
GPT = """\
layers = 12
hidden = 768
heads = 12
ffn = 3072
vocab = 50304
seq_len = 1024
gated = false
norm = "layer"
biases = true
tied = true
learned_positions = 1024"""
"""Model that SCRIPT trains."""
QWEN = JOB.replace("tiny-4m", "qwen2-1.5b").replace('"bf16"', '"fp32"')
SEARCHED = '\n[runner]\nname = "simulated"\n\n[space]\nname = "{space}"\n'


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


@pytest.mark.parametrize(("hosts", "elements"), [(4, None), (8, 64_000_000)])
def test_the_bucket_of_a_script_without_one_is_that_of_megatron_by_its_replicas(hosts, elements, problem_of) -> None:
    problem = problem_of("megatron", hosts=hosts)
    found = FORMATS["megatron"].parse(problem, {"a.sh": "pretrain_gpt.py --overlap-grad-reduce"}).settings.get("dp_bucket_mb")
    assert (found and found * 2**18) == elements
    stated = FORMATS["megatron"].parse(problem, {"a.sh": "pretrain_gpt.py --overlap-grad-reduce --ddp-bucket-size 262144"})
    assert stated.settings["dp_bucket_mb"] == 1


def test_a_file_of_deepspeed_becomes_a_job_of_its_runner_on_as_many_devices(tmp_path) -> None:
    draft, problem = adopted(tmp_path, "deepspeed", deepspeed())
    assert (problem.runner.name, problem.space.name) == ("deepspeed", "deepspeed-llama")
    assert (problem.global_batch, problem.cluster.devices, problem.training.precision) == (64, 8, "bf16")
    assert "the file states no model: [model] is a suggestion" in draft.notes


def test_ranks_of_sequence_parallelism_are_devices_of_deepspeed(problem_of) -> None:
    problem = problem_of("deepspeed", knobs="sp = [1, 2]")
    configuration = next(each for each in problem.candidates() if each["sp"] == 2)
    assert facts_of("deepspeed", export("deepspeed", problem, configuration)).devices == 8


@pytest.mark.parametrize(
    ("kind", "runner"), [("FSDP", "torch"), ("MULTI_GPU", "torch"), ("DEEPSPEED", "deepspeed")], ids=["FSDP", "DDP", "DeepSpeed"]
)
def test_accelerate_is_trained_by_the_runner_that_shards_alike(kind, runner, tmp_path) -> None:
    files = {"a.yaml": f"distributed_type: {kind}\nnum_processes: 4\nnum_machines: 1\nmixed_precision: bf16\n"}
    _, problem = adopted(tmp_path, "accelerate", files)
    assert (problem.runner.name, problem.cluster.devices, problem.training.precision) == (runner, 4, "bf16")


def test_without_a_job_a_format_must_choose_a_runner_and_state_its_model_whole(tmp_path) -> None:
    with pytest.raises(InputError, match="torchtitan does not determine a runner"):
        adopted(tmp_path, "torchtitan", {"recipe.py": "config.x = 1"})
    with pytest.raises(InputError, match="does not state `heads`, `vocab` as a number"):
        adopted(tmp_path, "megatron", {"a.sh": "pretrain_gpt.py --num-layers 2 --hidden-size 8 --seq-length 8 --num-attention-heads $H"})


@pytest.mark.parametrize(("origin", "files"), [("deepspeed", deepspeed()), ("megatron", {"train.sh": SCRIPT})])
def test_a_job_that_chooses_no_runner_gets_the_frameworks_behind_its_own_text(origin, files, tmp_path) -> None:
    job = JOB if origin == "deepspeed" else JOB.replace('preset = "tiny-4m"  # small', GPT)
    draft, problem = adopted(tmp_path, origin, files, job)
    assert problem.space.name in SPACES[origin] and not draft.rewritten
    assert draft.text == f"{job}\n{draft.added}\n" and f"chosen for {origin}" in draft.notes[0]


def test_a_job_of_the_frameworks_space_is_left_as_it_is(tmp_path) -> None:
    for space, runner in (("deepspeed", "simulated"), ("command", "simulated")):
        job = JOB + SEARCHED.format(space=space).replace("simulated", runner)
        draft, _ = adopted(tmp_path, "deepspeed", deepspeed(), job)
        assert draft.text == job and not draft.notes and not draft.added


DIFFERENT = (
    ({"train_batch_size": 128, "gradient_accumulation_steps": 4}, "the file has global_batch = 128, the job 64"),
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
    assert kept.text == job and kept.notes == (f"kept the job's value: {words}",) and problem.global_batch == 64
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


def test_taken_from_a_script_the_model_is_the_scripts_in_kind_too(tmp_path) -> None:
    draft, problem = adopted(tmp_path, "megatron", {"train.sh": LLAMA}, QWEN, take="file")
    model = problem.model
    assert (model.layers, model.kv_heads, model.qkv_bias, model.tied, model.vocab) == (32, 32, False, False, 32001)
    assert dataclasses.replace(model, name="") == dataclasses.replace(PRESETS["llama-2-7b"], name="", vocab=32001, seq_len=4096)
    problem.command.require_words_for(problem.candidates())  # chunks of 32 layers, not of 28
    assert adopted(tmp_path, "megatron", {"train.sh": LLAMA}, draft.text)[0].text == draft.text, "nothing differs any more"


def test_kept_as_the_job_has_it_the_launch_line_has_the_jobs_values(tmp_path) -> None:
    """The launch line states the job's model, although the script states another."""
    draft, problem = adopted(tmp_path, "megatron", {"train.sh": LLAMA}, QWEN, take="job")
    assert problem.model == PRESETS["qwen2-1.5b"] and problem.training.precision == "fp32"
    assert "the launch line uses the job's values" in draft.notes
    words = launch_line(problem, tmp_path)
    assert words[words.index("--vocab-size") + 1] == "151935", "the tokenizer adds one"
    assert "--bf16" not in words and words[words.index("--lr") + 1] == "1e-4"
    stated = facts_of("megatron", {"line.sh": " ".join(words)})
    assert all(getattr(problem.model, name) == value for name, value in {**stated.model, **stated.kind}.items())
    assert stated.precision == "fp32"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("preset", ["qwen2-1.5b", "mixtral-8x7b", "llama-2-7b", "GPT"])
@pytest.mark.parametrize("script", [SCRIPT, LLAMA], ids=["GPT", "Llama"])
def test_the_launch_line_states_the_model_and_the_precision_of_any_job(script, preset, precision, tmp_path) -> None:
    job = JOB.replace('"bf16"', f'"{precision}"').replace('preset = "tiny-4m"', GPT if preset == "GPT" else f'preset = "{preset}"')
    _, problem = adopted(tmp_path, "megatron", {"train.sh": script}, job, take="job")
    stated = facts_of("megatron", {"line.sh": " ".join(launch_line(problem, tmp_path))})
    assert {**stated.model, **stated.kind} == {name: getattr(problem.model, name) for name in {**stated.model, **stated.kind}}
    assert stated.precision == precision and not stated.lacking


def test_a_script_of_experts_becomes_a_job_and_a_dense_one_differs_from_a_job_of_experts(tmp_path) -> None:
    _, problem = adopted(tmp_path, "megatron", {"train.sh": f"{LLAMA.strip()} --num-experts 8"})
    assert (problem.model.experts, problem.model.experts_per_token) == (8, 2), "the default of --moe-router-topk"
    with pytest.raises(InputError, match="the file has experts = 1, the job 8"):
        adopted(tmp_path, "megatron", {"train.sh": LLAMA}, JOB.replace("tiny-4m", "mixtral-8x7b"))


def test_a_model_that_the_framework_cannot_train_is_refused_unless_the_files_is_taken(tmp_path) -> None:
    job = JOB.replace("tiny-4m", "bert-base")
    with pytest.raises(InputError, match="the file has causal = true, the job false"):
        adopted(tmp_path, "megatron", {"train.sh": LLAMA}, job)
    with pytest.raises(InputError, match=r"pretrain_gpt.py cannot train `bert-base`"):
        adopted(tmp_path, "megatron", {"train.sh": LLAMA}, job, take="job")
    assert adopted(tmp_path, "megatron", {"train.sh": LLAMA}, job, take="file")[1].model.causal


def test_a_job_without_a_model_gets_the_scripts(tmp_path) -> None:
    _, problem = adopted(tmp_path, "megatron", {"train.sh": LLAMA}, JOB.replace('[model]\npreset = "tiny-4m"  # small\n', ""))
    assert (problem.model.hidden, problem.model.kv_heads, problem.runner.name) == (4096, 32, "command")


@pytest.mark.parametrize(("origin", "space"), [("deepspeed", "deepspeed"), ("megatron", "megatron")])
def test_a_launch_line_of_the_users_own_gets_the_frameworks_space(origin, space, tmp_path) -> None:
    job, files = JOB.replace('preset = "tiny-4m"  # small', GPT) + OWN, {"deepspeed": deepspeed(), "megatron": {"train.sh": SCRIPT}}[origin]
    draft, problem = adopted(tmp_path, origin, files, job)
    assert (problem.space.name, problem.runner.name, draft.command) == (space, "command", "")
    assert draft.notes == (f"chosen for {origin}: the search space `{space}`",) and draft.text.startswith(job)
    assert adopted(tmp_path, origin, files, f'{job}[space]\nname = "command"\n')[1].space.name == "command", "the user's choice"
    draft, problem = adopted(tmp_path, origin, files, f"{job}[space.parameters]\nep = 1\n")
    assert problem.space.name == ("command" if origin == "deepspeed" else "megatron")
    assert ("the search space stays `command`, because the job does not fit" in draft.notes[0]) is (origin == "deepspeed")


def test_knobs_that_the_launch_line_does_not_name_are_found(tmp_path) -> None:
    files = deepspeed(zero_optimization={"stage": 2, "reduce_bucket_size": 1e9}, pipeline={"stages": 2})
    _, problem = adopted(tmp_path, "deepspeed", files, f"{JOB}{OWN}", take="job")
    reading = FORMATS["deepspeed"].parse(problem, files)
    assert unnamed_knobs(problem, reading) == {"zero_stage": 2, "zero_bucket_mb": pytest.approx(1907, abs=1)}, "pp is no knob"
    _, problem = adopted(tmp_path, "deepspeed", files, f"{JOB}{OWN}[command.arguments]\nzero_stage = ['{{zero_stage}}']\n", take="job")
    assert set(unnamed_knobs(problem, reading)) == {"zero_bucket_mb"}
    usual = FORMATS["deepspeed"].parse(problem, deepspeed(zero_optimization={"stage": 2, "reduce_bucket_size": 5e8}))
    assert not unnamed_knobs(problem, usual), "5e8 elements are DeepSpeed's default"


def test_knobs_that_words_of_the_search_space_add_to_the_launch_line_are_kept(tmp_path) -> None:
    values = {"per_device_train_batch_size": 2, "fsdp": "full_shard", "torch_compile": True, "gradient_checkpointing": True, "bf16": True}
    files, argv = {"arguments.json": json.dumps(values)}, '\n[command]\nargv = ["torchrun", "train.py"]\n[space]\nname = "transformers"\n'
    _, problem = adopted(tmp_path, "transformers", files, JOB + argv, take="file")
    reading = FORMATS["transformers"].parse(problem, files)
    assert reading.settings.items() >= {"zero_stage": 3, "torch_compile": True, "recompute": "full", "micro_batch": 2}.items()
    assert not unnamed_knobs(problem, reading)


@pytest.mark.parametrize(("origin", "files"), [("deepspeed", deepspeed()), ("megatron", {"train.sh": SCRIPT})])
def test_a_job_of_another_runner_is_said_to_be_one_and_can_be_moved(origin, files, tmp_path) -> None:
    job = JOB + '\n[runner]\nname = "torch"  # as `oppa init` writes it\n'
    with pytest.raises(InputError, match=f"the file is for {origin}, but the job runs `torch` and searches `torch`"):
        adopted(tmp_path, origin, files, job)
    _, problem = adopted(tmp_path, origin, files, job, take="file")
    assert problem.space.name in SPACES[origin] and problem.runner.name == {"deepspeed": "deepspeed", "megatron": "command"}[origin]
    assert adopted(tmp_path, origin, files, job, take="job")[1].space.name == "torch"


def test_a_job_without_a_batch_takes_the_files(tmp_path) -> None:
    job = JOB.replace("[batch]\nglobal_batch = 64  # sequences\n", "") + SEARCHED.format(space="deepspeed")
    draft, problem = adopted(tmp_path, "deepspeed", deepspeed(), job)
    assert problem.global_batch == 64 and draft.notes == ("global_batch = 64 is taken from the file",)


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
    assert "edit the file by hand" in caught.value.hint


def test_the_spaces_of_frameworks_are_in_the_catalog() -> None:
    assert {name for names in SPACES.values() for name in names} <= set(catalog.names("search_spaces"))
