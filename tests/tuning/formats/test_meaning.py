"""An exported setting means the same to its framework, and one that the framework would change by itself is refused."""

import dataclasses

import pytest

from oppa.errors import InputError
from oppa.tuning.formats import export, megatron
from tests.tuning.formats.conftest import at


@pytest.mark.parametrize(
    ("values", "parameter"), [({"zero_stage": 2}, "zero_stage"), ({"zero_stage": 1, "overlap_zero_comm": True}, "overlap_zero_comm")]
)
def test_what_colossalai_replaces_for_experts_is_refused(values, parameter, problem_of) -> None:
    problem = problem_of("torch", model="mixtral-8x7b")
    with pytest.raises(InputError, match=f"cannot express `{parameter} = .*` together with `ep = 2`"):
        export("colossalai", problem, at(ep=2, **values))
    assert "ep_size=2" in export("colossalai", problem, at(ep=2, zero_stage=1))["plugin.py"]


@pytest.mark.parametrize(("precision", "written"), [("bf16", "bfloat16"), ("fp32", "float32")])
def test_torchtitan_computes_in_the_precision_of_the_job(precision, written, problem_of) -> None:
    recipe = export("torchtitan", problem_of("torch", precision=precision), at(zero_stage=3))["oppa_recipe.py"]
    assert f'config.training.mixed_precision_param = "{written}"' in recipe


@pytest.mark.parametrize(("biases", "dropout"), [(False, ["0"]), (True, None)])
def test_a_model_without_biases_has_no_dropout_in_megatron(biases, dropout, problem_of) -> None:
    problem = problem_of("megatron")
    changed = dataclasses.replace(problem, stated_model=dataclasses.replace(problem.model, biases=biases))
    options = megatron.options_of(export("megatron", changed, at(dp_bucket_mb=153, overlap_p2p=True)))
    assert [options.get(f"--{part}-dropout") for part in ("attention", "hidden")] == [dropout] * 2


def test_a_word_that_a_shell_would_split_is_refused(problem_of) -> None:
    declared = '[space]\nname = "megatron"\n[space.parameters.note]\nvalues = ["a-b", "a b"]\nwords = "--note {note}"\n'
    line = '[command]\nargv = ["torchrun", "pretrain_gpt.py", "--train-iters", "{steps}"]\nsteps = {format = "megatron"}\n'
    problem = problem_of("megatron", runner="command", rest=line + declared)
    found = {each["note"]: each for each in problem.candidates() if each.dp == 8}
    assert megatron.options_of(export("megatron", problem, found["a-b"]))["--note"] == ["a-b"]
    with pytest.raises(InputError, match='cannot express `note = "a b"`'):
        export("megatron", problem, found["a b"])
