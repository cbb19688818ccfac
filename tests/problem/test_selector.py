"""A setting in people's words: what it means, or which constraints it violates, and what would do instead."""

from collections.abc import Callable
from pathlib import Path

import pytest

from oppa.errors import InputError
from oppa.problem.candidates import Candidates
from oppa.problem.configuration import parse_id
from oppa.problem.job import load_job
from oppa.problem.selector import alternatives, find, violations

WriteJob = Callable[..., Path]


@pytest.fixture
def candidates(write_job: WriteJob) -> Candidates:
    return load_job(write_job()).candidates()


def test_a_setting_means_exactly_the_candidates_that_have_its_values(candidates: Candidates) -> None:
    _, found = find("dp=2, zero_stage=1", candidates)
    expected = [i for i, each in enumerate(candidates) if each.dp == 2 and each.zero_stage == 1]
    assert list(found) == expected != []


def test_every_id_means_its_own_configuration_alone(candidates: Candidates) -> None:
    for index in range(0, len(candidates), len(candidates) // 50):
        assert list(find(candidates.configuration(index).id, candidates)[1]) == [index]


def test_an_id_spells_out_what_it_leaves_out() -> None:
    assert parse_id("dp2") is None
    parsed = parse_id("dp2_tp1_pp2_z1_mbs4_interleaved-zb_rcfull_00ab12")
    assert parsed is not None
    assert (parsed["zero_stage"], parsed["micro_batch"], parsed["schedule"], parsed["recompute"]) == (1, 4, "interleaved-zb", "full")
    assert (parsed["ep"], parsed["model_chunks"]) == (1, 1)


@pytest.mark.parametrize(
    ("text", "rules", "here"),
    [
        ("dp=2,tp=2,pp=2", ["dp * tp * pp == devices"], "devices = 4, dp = 2, pp = 2, tp = 2"),
        ("dp=4,tp=2,recompute=full", ["dp * tp * pp == devices"], "pp = 1 or 2 or 4"),
        ("dp=1,zero_stage=2", ["dp > 1"], "dp = 1"),
        ("pp=4,zero_stage=2", ["dp > 1"], "dp = 1"),
        ("zero_stage=3,schedule=zb-v", ["zero_stage <= 2 or schedule not in ['interleaved-zb', 'zb-v', 'search']"], "zero_stage = 3"),
        (
            "pp=2,schedule=interleaved,model_chunks=1",
            ["model_chunks >= 2 or schedule not in ['interleaved', 'interleaved-zb']"],
            "model_chunks = 1",
        ),
        ("micro_batch=16", ["micro_batch in [1, 2, 4, 8]"], "micro_batch = 16"),
    ],
)
def test_each_violated_constraint_is_named_and_no_other(candidates: Candidates, text: str, rules: list[str], here: str) -> None:
    setting, found = find(text, candidates)
    assert len(found) == 0
    named = violations(candidates.space, setting)
    assert [each.rule for each in named] == rules
    assert here in named[0].here and named[0].why


@pytest.mark.parametrize("text", ["dp=2,tp=2,pp=2", "dp=1,zero_stage=2", "micro_batch=16", "zero_stage=3,schedule=zb-v"])
def test_each_alternative_is_valid(candidates: Candidates, text: str) -> None:
    setting, _ = find(text, candidates)
    others = alternatives(candidates, setting)
    assert others
    for name, values in others.items():
        for value in values:
            changed = ",".join(f"{key}={value if key == name else kept}" for key, kept in setting.items())
            assert len(find(changed, candidates)[1])


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("ddp=2", "`ddp` is not a parameter of the space `torch`", "did you mean `dp`?"),
        ("dp=3", "`dp = 3` does not divide `devices = 4`", "use one of 1, 2, 4"),
        ("schedule=zbv", "`schedule = zbv` is not legal", '"zb-v"'),
        ("dp=2,tp=1,dp=4", "gives `dp` two values: 2 and 4", "once"),
        ("fast", "`fast` is not a configuration", "dp=2,tp=1"),
        ("dp4_tp1_pp1_z0_mbs1_ffffff", "no configuration of the space has the id", "dp4_tp1_pp1_z0_mbs1"),
    ],
)
def test_what_cannot_be_read_is_an_error(candidates: Candidates, text: str, message: str, hint: str) -> None:
    with pytest.raises(InputError) as raised:
        find(text, candidates)
    assert message in raised.value.message and hint in raised.value.hint
