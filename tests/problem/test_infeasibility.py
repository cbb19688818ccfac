"""An empty space is explained: the constraints to blame, with values, and what would do instead."""

from collections.abc import Callable
from pathlib import Path

import pytest

from oppa.errors import JobError
from oppa.problem.infeasibility import is_empty, why_empty
from oppa.problem.job import load_job
from oppa.problem.space import Facts, SearchSpace
from oppa.problem.space_file import read_space

WriteJob = Callable[..., Path]
SPACE, PRESET, DEVICES = "[space.parameters]\n", 'preset = "tiny-16m"', "devices_per_host = 4"
EVEN = f'[space]\nname = "megatron"\n\n{SPACE}'
"""Whose stages hold equally many layers."""


@pytest.mark.parametrize(
    ("replacements", "message", "hint"),
    [
        (
            [(SPACE, EVEN + "pp = 5\n"), (DEVICES, "devices_per_host = 5"), (PRESET, PRESET + "\nlayers = 24")],
            "`pp = 5` does not divide `layers = 24`",
            "make `layers` a multiple of 5",
        ),
        ([(SPACE, EVEN + "pp = 4\n"), (PRESET, PRESET + "\nlayers = 6")], "`pp = 4` does not divide `layers = 6`", "use `pp` of 1, 2"),
        ([(SPACE, SPACE + "tp = 4\n"), (PRESET, PRESET + "\nheads = 6\nkv_heads = 6")], "`tp = 4` does not divide", "use `tp` of 1, 2"),
        (
            [(SPACE, SPACE + "dp = 4\n"), ("= 32", "= 2"), ("[1, 2, 4, 8]", "[1]")],
            "`dp = 4` does not divide `global_batch = 2`",
            "`dp` of 1, 2",
        ),
        (
            [(SPACE, SPACE + "dp = 2\ntp = 2\npp = 2\n")],
            "`dp * tp * pp == devices` never holds: every device runs one rank; here `devices = 4`, `dp = 2`, `pp = 2`, `tp = 2`",
            "use `dp` of 1 or `tp` of 1 or `pp` of 1",
        ),
        (
            [(SPACE, EVEN + "pp = 2\ntp = 3\n"), (DEVICES, "devices_per_host = 6"), (PRESET, PRESET + "\nlayers = 7")],
            "no configuration is valid, because:\n  `pp = 2` does not divide `layers = 7`\n  `tp = 3` does not divide `heads = 8`",
            "make `layers` a multiple of 2 and make `heads` a multiple of 3",
        ),
        (
            [(SPACE, EVEN), (DEVICES, "devices_per_host = 5")],
            "`global_batch % (dp * micro_batch) == 0` never holds",
            "change `global_batch` or `layers`",
        ),
    ],
    ids=["layers", "stages", "heads", "batch", "product", "two at once", "devices"],
)
def test_the_blame_and_the_remedy(replacements: list[tuple[str, str]], message: str, hint: str, write_job: WriteJob) -> None:
    with pytest.raises(JobError) as raised:
        load_job(write_job(*replacements))
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_stages_of_the_built_in_runner_need_not_be_equally_long(write_job: WriteJob) -> None:
    job = load_job(write_job((SPACE, SPACE + "pp = 4\n"), (PRESET, PRESET + "\nlayers = 6")))
    assert len(job.candidates()) > 0


@pytest.mark.parametrize(("changed", "broken"), [(["tied"], "`tied = true`"), (["biases", "norm"], '`biases = true`, `norm = "layer"`')])
def test_only_the_facts_that_break_a_rule_are_named(changed: list[str], broken: str, make_facts: Callable[..., Facts]) -> None:
    llama = {"norm": "rms", "gated": True, "causal": True, "biases": False, "qkv_bias": False, "tied": False}
    other = {"norm": "layer", "biases": True, "tied": True}
    rule = "norm == 'rms' and gated and causal and not (biases or qkv_bias or tied)"
    facts = {**make_facts(), **llama, **{name: other[name] for name in changed}}
    parameters = "".join(f"[parameters.{name}]\ndivisors = 'devices'\n" for name in ("dp", "tp", "pp", "micro_batch"))
    constraint = f"[[constraint]]\nexpression = \"{rule}\"\nwhy = 'test'\n"
    error = why_empty(read_space(parameters + constraint, name="mine", facts=facts))
    assert error.message.endswith(f"; here {broken}") and error.hint == f"change {' or '.join(f'`{name}`' for name in changed)}"


def test_where_no_constraint_is_to_blame_alone_removals_are_counted(make_facts: Callable[..., Facts]) -> None:
    parameters = "".join(f"[parameters.{name}]\ndivisors = 'devices'\n" for name in ("dp", "tp", "pp", "micro_batch"))
    stated = ("micro_batch >= 4", "micro_batch <= 1", "micro_batch == 2")  # each pair of these leaves nothing, each alone something
    constraints = "".join(f"[[constraint]]\nexpression = '{expression}'\nwhy = 'test'\n" for expression in stated)
    error = why_empty(read_space(parameters + constraints, name="mine", facts=make_facts()))
    assert "`dp * tp * pp == devices` removes 21: every device runs one rank" in error.message  # 6 of 27 are left
    assert "`micro_batch <= 1` removes " in error.message
    assert error.hint == "change `devices_per_host` or `global_batch`"


@pytest.mark.parametrize("name", ["torch", "deepspeed", "colossalai", "megatron"])
def test_what_the_remedy_says_helps(name: str, framework_space: Callable[..., SearchSpace]) -> None:
    space = framework_space(name).restricted("pp", 4).restricted("tp", 4)
    assert is_empty(space)
    assert why_empty(space).hint == "use `tp` of 1 or `pp` of 1"
    assert not is_empty(space.restricted("tp", 1))
    assert not is_empty(space.restricted("pp", 1))
