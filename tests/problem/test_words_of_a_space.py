"""A search space adds the words of its parameters to a launch line that does not name them, and checks what the line states itself."""

import contextlib
import functools
import json
import re

import pytest

from oppa.errors import InputError, JobError
from oppa.problem.job import load_job
from oppa.problem.problem import Problem
from oppa.tuning.formats import FORMATS
from tests.problem import own_space
from tests.problem.own_space import launched

PLAIN = ["torchrun", "pretrain_gpt.py", "--bf16"]


@pytest.fixture
def load(tmp_path):
    return functools.partial(own_space.load, tmp_path)


def test_a_launch_line_that_names_no_parameter_gets_the_words_of_all(load) -> None:
    problem = load('extends = "megatron"\n', argv=PLAIN)
    assert {"tp", "pp", "micro_batch", "zero_stage", "schedule", "recompute"} <= {
        known.name for known in problem.space.parameters if len({each[known.name] for each in problem.candidates()}) > 1
    }
    split = next(each for each in problem.candidates() if each.tp == 2 and each.zero_stage == 1)
    line = launched(problem, split)
    assert "--tensor-model-parallel-size 2 --sequence-parallel" in line and "--use-distributed-optimizer" in line
    assert not any(known.words for known in load('extends = "megatron"\n').space.parameters), "it names `tp` and `micro_batch` alone"


def test_a_plain_launch_line_does_not_state_what_the_space_sets(load) -> None:
    with pytest.raises(JobError, match="states `--sequence-parallel`, which the search space `space` sets") as raised:
        load('extends = "megatron"\n', argv=[*PLAIN, "--sequence-parallel"])
    assert "remove it" in raised.value.hint
    assert load('extends = "megatron"\n', argv=[*PLAIN, "--recompute-modules", "mlp"]).command, "a knob that does not vary"


def test_words_for_other_values_have_a_star(load) -> None:
    problem = load('extends = "megatron"\n[parameters.x]\nvalues = [0, 1, 2]\nwords = { 0 = [], "*" = "--x {x}" }\n')
    assert {launched(problem, each).partition("--x ")[2] for each in problem.candidates()} == {"", "1", "2"}


def test_a_constraint_that_a_settled_knob_fulfils_is_dropped(load) -> None:
    constraint = '[[constraint]]\nexpression = "x == 0 or dp % 2 == 0"\nwhy = "pairs"\n'
    entry = 'extends = "megatron"\n[parameters.x]\nvalues = [0, 1]\non_request = true\nwords = "--x {x}"\n'
    assert load(entry + constraint).space.constraints == load(entry).space.constraints


def test_a_launch_line_that_names_nothing_needs_a_space_with_words(load) -> None:
    with pytest.raises(JobError, match="names no parameter, and the search space `space` adds no options") as raised:
        load('extends = "deepspeed"\n', argv=["accelerate", "launch", "train.py"])
    assert "[command.files]" in raised.value.hint


ACCELERATE = 'extends = "accelerate"\n[parameters.workers]\nvalues = [0, 4]\nwords = "--workers {workers}"\n'
BATCH = ["train.py", "--batch", "{micro_batch}"]


@pytest.mark.parametrize(
    "front", [["accelerate", "launch"], ["/x/bin/accelerate", "launch"], ["python3", "-m", "accelerate.commands.launch"]]
)
def test_options_of_a_launcher_stand_before_the_program(front, load) -> None:
    problem = load(ACCELERATE, argv=[*front, "--num_processes", "4", *BATCH])
    lines = {each.id: launched(problem, each).split() for each in problem.candidates()}
    assert {each.tp for each in problem.candidates()} == {1, 2, 4} and {each.zero_stage for each in problem.candidates()} == {0, 2, 3}
    for each in problem.candidates():
        words = lines[each.id]
        assert words[: len(front)] == front and words[-4:] == ["--batch", str(each.micro_batch), "--workers", str(each["workers"])]
        own = words[len(front) : words.index("train.py")]
        assert own[-2:] == ["--num_processes", "4"]
        assert ("--fsdp_reshard_after_forward" in own) == (each.zero_stage > 0) and ("--parallelism_config_tp_size" in own) == (each.tp > 1)
    assert Problem.from_dict(json.loads(json.dumps(problem.to_dict()))) == problem


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        (["sh", "run.sh", "{micro_batch}"], "adds options to a launcher, which the launch line does not start", "not with a script"),
        (["accelerate", "launch", "--use-fsdp", *BATCH], "states `--use-fsdp`, which the search space `space` sets", "remove it"),
        (["accelerate", "launch", "train.py"], "no option for the micro-batch, and the launch line does not name it", "{micro_batch}"),
    ],
)
def test_what_is_wrong_with_a_line_of_a_launcher_is_said(argv, message, hint, load) -> None:
    with pytest.raises(JobError, match=message) as raised:
        load(ACCELERATE, argv=argv)
    assert hint in raised.value.hint


def test_an_alternative_that_a_settled_knob_makes_false_is_dropped(load) -> None:
    entry = 'extends = "megatron"\n[parameters.x]\nvalues = [0, 1]\non_request = true\nwords = "--x {x}"\n'
    law = '[[constraint]]\nexpression = "{}dp % 2 == 0"\nwhy = "pairs"\n'
    assert load(entry + law.format("x > 0 or ")).space.constraints == load(entry + law.format("")).space.constraints


def test_layers_that_do_not_divide_over_megatrons_stages_need_other_first_and_last_ones(load, tmp_path) -> None:
    """Megatron-LM's own configuration divides 14 layers in just these ways."""
    load('extends = "megatron"\n', argv=PLAIN)
    stages = "space.parameters={pp=[4], first_stage_layers=[0, 1, 2, 3], last_stage_layers=[0, 1, 2, 3]}"
    problem = load_job(tmp_path / "job.toml", settings=["model.layers=14", stages], argv=PLAIN)
    found = {(each["first_stage_layers"], each["last_stage_layers"]): launched(problem, each) for each in problem.candidates()}
    assert found.keys() == {(0, 2), (2, 0), (1, 1), (1, 3), (2, 2), (3, 1), (3, 3)}
    assert "--decoder-first-pipeline-num-layers 3 --decoder-last-pipeline-num-layers 1" in found[3, 1]
    files = FORMATS["megatron"].export(problem, next(each for each in problem.candidates() if each["first_stage_layers"] == 3))
    assert "--decoder-first-pipeline-num-layers 3" in "".join(files.values())


def test_megatron_counts_embedding_or_loss_as_a_layer_or_has_a_layout_of_ones_own(load, tmp_path) -> None:
    load('extends = "megatron"\n', argv=PLAIN)

    def lines(parameters):
        settings = ["model.layers=7", f"space.parameters={{pp=[4], {parameters}}}"]
        problem = load_job(tmp_path / "job.toml", settings=settings, argv=PLAIN)
        return {launched(problem, each) for each in problem.candidates()}

    counted = lines("embedding_as_layer=[0, 1], loss_as_layer=[0, 1]")
    assert {tuple(re.findall("account-for-([a-z]+)", each)) for each in counted} == {("embedding",), ("loss",)}
    own = lines('pipeline_layout=["even", "Et|tt|tt|ttL"]')
    assert {each.partition("--pipeline-model-parallel-layout ")[2] for each in own} == {"Et|tt|tt|ttL"}


def test_a_layout_of_ones_own_runs_on_as_many_stages_as_it_has(load, tmp_path) -> None:
    load('extends = "megatron"\n', argv=PLAIN)
    layouts = 'pipeline_layout=["even", "Et*4|t*4L", "(Et|)*1(tt|)*2t*3L"]'
    problem = load_job(tmp_path / "job.toml", settings=["model.layers=8", f"space.parameters={{pp=[2, 4], {layouts}}}"], argv=PLAIN)
    own = {(each.pp, each["pipeline_layout"]) for each in problem.candidates() if each["pipeline_layout"] != "even"}
    assert own == {(2, "Et*4|t*4L"), (4, "(Et|)*1(tt|)*2t*3L")}
    for wrong in ("Et|tt|ttL", "Et(t|tL"):
        choices = f'space.parameters={{pp=[4], schedule="1f1b", pipeline_layout="{wrong}"}}'
        with pytest.raises(InputError, match="stages"):
            load_job(tmp_path / "job.toml", settings=[choices], argv=PLAIN)


@pytest.mark.parametrize(
    ("choices", "error"),
    [
        ("recompute_layers={values=[3,5],open=true}", ""),
        ("recompute_layers={values=[3,5]}", "`recompute_layers = 5` is not legal"),
        ("recompute_layers={values=[5],open=true,short='x'}", "is declared already"),
        ("cp_comm={values=['p2p','new'],open=true}", "has words for its own values alone"),
    ],
)
def test_a_job_opens_a_parameter_to_values_that_the_space_does_not_list(choices, error, load, tmp_path) -> None:
    load('extends = "megatron"\n', argv=PLAIN)
    settings = ["model.layers=12", f"space.parameters.{choices}"]
    with pytest.raises(InputError, match=error) if error else contextlib.nullcontext():
        problem = load_job(tmp_path / "job.toml", settings=settings, argv=PLAIN)
        assert problem.space["recompute_layers"].choices == (3, 5)
        assert any("--recompute-num-layers 5" in launched(problem, each) for each in problem.candidates())


def test_megatron_spreads_experts_that_are_not_split_over_tensor_parallel_ranks_too(load, tmp_path) -> None:
    """Megatron-LM wants the ranks to be a multiple of expert_tensor_parallel x expert_parallel x pipeline_parallel (parallel_state.py)."""
    load('extends = "megatron"\n', argv=PLAIN)
    settings = ['model={preset="mixtral-8x7b"}', 'space.parameters={expert_tp=["tp", "1"], cp=[1, 2], micro_batch=2, dp_bucket_mb=153}']
    every = list(load_job(tmp_path / "job.toml", settings=settings, argv=PLAIN).candidates())
    assert all(4 % ((each.tp if each["expert_tp"] == "tp" else 1) * each.ep * each.pp) == 0 for each in every)
    assert {(each.tp, each["cp"], each["expert_tp"]) for each in every if each.ep == 4} == {
        (1, 1, "tp"), (1, 2, "tp"), (2, 1, "1"), (2, 2, "1"), (4, 1, "1"),
    }  # fmt: skip
