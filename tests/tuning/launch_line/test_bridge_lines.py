"""A line of Megatron-Bridge overrides a recipe by keys, or by the runner's short options for them."""

import pytest

from oppa.errors import InputError
from oppa.tuning.launch_line.changed_line import changed_line

LINE = "torchrun --nproc-per-node 8 run_recipe.py --recipe llama32_1b_pretrain_config --dataset mock"


@pytest.mark.parametrize(
    "words",
    [
        "-tp 2 -pp 2 -gb 64 -mb 2",
        "--tensor_model_parallel_size 2 --pipeline_model_parallel_size=2 --global_batch_size 64 --micro_batch_size=2",
        "model.tensor_model_parallel_size=2 model.pipeline_model_parallel_size=2 train.global_batch_size=64 train.micro_batch_size=2",
        "-tp 2 -gb 64 model.pipeline_model_parallel_size=2 train.micro_batch_size=2",
    ],
)
def test_short_options_state_what_keys_state(words, job) -> None:
    made = job(f"{LINE} {words}")
    baseline = made.problem.baseline
    assert (made.meaning.framework, made.meaning.global_batch) == ("megatron-bridge", 64)
    assert (baseline.dp, baseline.tp, baseline.pp, baseline.micro_batch) == (2, 2, 2, 2)
    other = next(each for each in made.problem.candidates() if (each.tp, each.pp, each.micro_batch) == (4, 2, 2))
    line = changed_line(made, other).line
    assert "model.tensor_model_parallel_size=4" in line or line[line.index("--tensor_model_parallel_size") + 1] == "4"
    assert "-tp" not in line and ("-mb" in line) == ("-mb" in words)


def test_two_spellings_that_differ_are_a_contradiction(job) -> None:
    with pytest.raises(InputError, match=r"is `2` .* and `4`"):
        job(f"{LINE} -tp 2 model.tensor_model_parallel_size=4 -gb 64 -mb 1")


def test_a_pipeline_of_several_chunks_stays(job) -> None:
    made = job(f"{LINE} -tp 2 -pp 2 -vp 2 -gb 64 -mb 2")
    assert {each.pp for each in made.problem.candidates()} == {2} and "pp = 2 stays as it is" in made.notes


def test_a_recipe_without_overrides_is_understood_and_leaves_all_open(job) -> None:
    with pytest.raises(InputError, match="it is understood as Megatron-Bridge") as refused:
        job(LINE)
    assert "model.tensor_model_parallel_size=..." in refused.value.hint


def test_the_folders_of_the_runners_options_are_not_those_of_trials(job) -> None:
    made = job(f"{LINE} --save_dir /mine --load_dir /mine --save_interval 10 -mb 1 -gb 64")
    words = made.problem.command.argv
    assert "/mine" not in words and {"checkpoint.save=null", "checkpoint.load=null"} <= {*words}


def test_the_indices_of_a_data_set_are_written_into_a_folder_of_the_study(job) -> None:
    line = f"{LINE} -mb 1 -gb 64".replace("mock", "megatron-indexed")
    words = job(f"{line} dataset.data_path=/data/a_text_document").problem.command.argv
    assert "dataset.path_to_cache={cache_folder}/dataset.path_to_cache" in words
    assert not [word for word in job(line).problem.command.argv if "path_to_cache" in word]
