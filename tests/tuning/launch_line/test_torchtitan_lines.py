"""A line of torchtitan states options by a function or by a file, and trials add theirs in its spelling."""

import itertools
import shlex

import pytest

from oppa.errors import InputError
from oppa.tuning.formats.space_words import values_outside_trials
from oppa.tuning.launch_line.changed_line import changed_line
from oppa.tuning.launch_line.understand import understand
from tests.tuning.launch_line.conftest import CPUS

LINE = "torchrun --nproc-per-node 8 -m torchtitan.train"


@pytest.mark.parametrize("module", ["llama3", "torchtitan.models.llama3"])
def test_a_registered_function_states_all_that_it_sets(module) -> None:
    found = understand(shlex.split(f"{LINE} --module {module} --config llama3_70b"), environment={}, machine=CPUS)[1]
    assert (found.settings["tp"], found.settings["dp"], found.settings["recompute"], found.global_batch) == (8, 1, "full", 8)
    assert (found.model["layers"], found.model["seq_len"]) == (80, 8192)
    assert found.origins["tp"] == found.origins["recompute"] == "the registry"


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        ("--module qwen3 --config qwen3_32b", {}),
        ("--module llama3 --config llama3_405b", {}),
        ("--module own.llama3 --config llama3_8b", {"tp": 2}),
    ],
)
def test_what_another_function_states_is_not_known(words, stated, job) -> None:
    with pytest.raises(InputError, match="nothing in this launch line may vary") as refused:
        job(f"{LINE} {words}")
    assert "`--training.global_batch_size ...`" in refused.value.hint
    overrides = "".join(f" --parallelism.tensor_parallel_degree {tp}" for tp in stated.values())
    made = job(f"{LINE} {words} --training.global_batch_size 64 --training.local_batch_size 2{overrides}")
    assert dict(made.meaning.settings) == {**stated, "micro_batch": 2} and not made.meaning.model and made.problem.global_batch == 64
    varied = {known.name for known in made.problem.space.parameters if len(known.choices) > 1}
    assert varied - {"dp"} == {"micro_batch", *stated}


@pytest.mark.parametrize(
    ("text", "options", "compiles"),
    [
        ("[training]\nlocal_batch_size = 1\n[compile]\nenable = true", ["--compile.enable"], {False, True}),
        ("[training]\nlocal_batch_size = 1\ncompile = true", ["--training.compile"], {False, True}),
        ("[training]\nlocal_batch_size = 1", [], {False}),
        ("[training]\nbatch_size = 1\ntensor_parallel_degree = 2", ["--training.batch_size", "--training.tensor_parallel_degree"], {False}),
    ],
)
def test_trials_have_the_options_of_the_release_that_the_file_is_for(text, options, compiles, job) -> None:
    file = f"[model]\nname = 'llama3'\nflavor = '8B'\n{text}\n"
    made = job(f"{LINE} --job.config_file c.toml", {"c.toml": file})
    assert {each["compile"] for each in made.problem.candidates()} == compiles
    assert set(options) <= {option for each in made.problem.command.arguments for option in each.templates}


def test_the_micro_batch_of_a_pipeline_has_an_option_of_its_own() -> None:
    words = "--module llama3 --config llama3_8b --parallelism.pipeline_parallel_degree 2"
    found = understand(shlex.split(f"{LINE} {words}"), environment={}, machine=CPUS)[1]
    assert (found.settings["micro_batch"], found.origins["micro_batch"]) == (1, "default of torchtitan")


TOKENS = f"{LINE} --module llama3 --config llama3_8b --training.num_tokens_per_microbatch_per_dp_rank"


def test_batches_that_are_counted_in_tokens_are_those_of_sequences(job) -> None:
    made = job(f"{TOKENS} 32768 --training.num_tokens_per_train_step=524288")
    assert (made.meaning.global_batch, made.problem.baseline.micro_batch, made.problem.stated_model.seq_len) == (64, 4, 8192)
    each = next(each for each in made.problem.candidates() if each.micro_batch == 2 and each.recompute == "full")
    words = made.problem.launch_line(each).words(values_outside_trials(made.problem, each), {})
    assert words[words.index("--training.num_tokens_per_microbatch_per_dp_rank") + 1] == "16384"
    assert words[words.index("--training.num_tokens_per_train_step") + 1] == "524288" and words[-1] == "activation_checkpoint:full"
    assert not [word for word in words if word in ("--training.local_batch_size", "--training.global_batch_size", "--training.seq_len")]


def test_tokens_of_a_function_stay_if_the_length_changes(job) -> None:
    made = job(f"{LINE} --module llama3 --config llama3_8b --training.max_context_length 4096")
    assert (made.problem.baseline.micro_batch, made.meaning.global_batch, made.problem.stated_model.seq_len) == (2, 16, 4096)
    with pytest.raises(InputError, match=r"= 10000` .* is not a multiple of the 8192 tokens of a sequence"):
        job(f"{TOKENS} 10000")


def test_a_checkout_shows_that_batches_are_counted_in_tokens(job) -> None:
    files = {"torchtitan/config/configs.py": "num_tokens_per_microbatch_per_dp_rank: int = 16384\n"}
    made = job(f"{LINE} --module llama3 --config llama3_8b", files)
    assert "--training.num_tokens_per_train_step" in made.text and "local_batch_size" not in made.text


@pytest.mark.parametrize(("name", "value"), [("tp", 2), ("micro_batch", 1)])
def test_the_printed_line_states_the_tokens_of_a_step_if_their_default_would_change(name, value, job) -> None:
    made = job(f"{TOKENS} 16384")
    best = next(each for each in made.problem.candidates() if each[name] == value)
    words = changed_line(made, best).line
    assert words[words.index("--training.num_tokens_per_train_step") + 1] == "131072"
    assert "--training.num_tokens_per_train_step" not in changed_line(made, made.problem.baseline).line


def test_a_length_that_an_unknown_function_states_is_asked_for(job) -> None:
    line = f"{TOKENS} 32768 --training.num_tokens_per_train_step 262144".replace("llama3", "qwen3")
    with pytest.raises(InputError, match="nothing in this launch line may vary") as refused:
        job(line)
    assert "`--training.max_context_length ...`" in refused.value.hint
    assert job(f"{line} --training.max_context_length 4096").meaning.global_batch == 64


def test_a_dash_in_a_name_is_an_underscore(job) -> None:
    words = "--training.local-batch-size=2 --parallelism.tensor-parallel-degree 2 --compile.no-enable"
    made = job(f"{LINE} --module llama3 --config llama3_8b {words}")
    assert (made.problem.baseline.micro_batch, made.problem.baseline.tp, made.meaning.settings["compile"]) == (2, 2, False)
    assert not [word for word in made.problem.command.argv if "degree" in word or "batch" in word]


REPLICAS, SHARDS = (f"--parallelism.data_parallel_{each}_degree" for each in ("replicate", "shard"))


@pytest.mark.parametrize(("shards", "replicas", "added"), [(8, 1, {SHARDS: "-1"}), (1, 8, {REPLICAS: "4", SHARDS: "1"}), (-1, 1, {})])
def test_degrees_of_a_file_follow_tensor_parallelism(shards, replicas, added, job) -> None:
    degrees = f"[parallelism]\ndata_parallel_shard_degree = {shards}\ndata_parallel_replicate_degree = {replicas}\n"
    made = job(f"{LINE} --job.config_file c.toml", {"c.toml": f"[model]\nname = 'llama3'\nflavor = '8B'\n{degrees}"})
    best = next(each for each in made.problem.candidates() if each.tp == 2)
    for words in (changed_line(made, best).line, made.problem.launch_line(best).words(values_outside_trials(made.problem, best), {})):
        assert added.items() <= dict(itertools.pairwise(words)).items()
    assert {REPLICAS, SHARDS} & {*changed_line(made, best).line} == added.keys()


@pytest.mark.parametrize("name", ["llama3_8b", "own"])
def test_tensor_parallelism_leaves_a_multiple_of_the_replicas(name, job) -> None:
    line = f"{TOKENS} 8192 --training.num_tokens_per_train_step 524288 --training.max_context_length 8192 {REPLICAS} 2"
    made = job(f"{line} --parallelism.tensor_parallel_degree 1".replace("llama3_8b", name))
    assert {each.tp for each in made.problem.candidates()} == ({1, 2, 4} if name == "own" else {1, 2})


BUDGET = "activation_checkpoint:memory-budget --activation_checkpoint.memory_budget 0.3"


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ("--job.config_file c.toml --activation_checkpoint.mode=memory_budget", "--activation_checkpoint.mode=memory_budget"),
        (f"--module llama3 --config llama3_8b --compile.enable {BUDGET}", BUDGET),
    ],
)
def test_trials_keep_a_mode_of_recomputation_that_the_search_space_lacks(words, mode, job) -> None:
    made = job(f"{LINE} {words}", {"c.toml": "[model]\nname = 'llama3'\nflavor = '8B'\n[compile]\nenable = true\n"})
    assert made.problem.baseline is not None and any(note.startswith("trials keep `activation_checkpoint.mode") for note in made.notes)
    for each in made.problem.candidates():
        trial = " ".join(made.problem.launch_line(each).words(values_outside_trials(made.problem, each), {}))
        assert trial.count(mode) == trial.count("activation_checkpoint:") + trial.count("activation_checkpoint.mode") == 1
        assert each["compile"] and mode in " ".join(changed_line(made, each).line)


def test_a_subcommand_of_an_unknown_function_is_last_in_trials(job) -> None:
    made = job(f"{LINE} --module own --config own --training.global_batch_size 32 --training.local_batch_size 2 activation_checkpoint:full")
    trials = [made.problem.launch_line(each).words(values_outside_trials(made.problem, each), {}) for each in made.problem.candidates()]
    assert {words[-1] for words in trials} == {"activation_checkpoint:full"} and made.problem.baseline.recompute == "full"


@pytest.mark.parametrize("line", ["--job.config_file c.toml", "--module llama3 --config llama3_8b --training.enable_cpu_offload"])
def test_states_that_are_offloaded_stay_so_and_are_predicted(line, job) -> None:
    file = "[model]\nname = 'llama3'\nflavor = '8B'\n[training]\nlocal_batch_size = 1\nenable_cpu_offload = true\n"
    made = job(f"{LINE} {line}", {"c.toml": file})
    assert {each["cpu_offload"] for each in made.problem.candidates() if each.zero_stage >= 2} == {True}
    assert made.problem.baseline["cpu_offload"] is True
    assert made.meaning.origins["cpu_offload"] == ("c.toml" if "c.toml" in line else "line")
    assert "cpu_offload" not in job(f"{LINE} {line.replace('--training.enable_cpu_offload', '')}", {"c.toml": "[model]\n"}).meaning.settings
