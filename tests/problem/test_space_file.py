"""Search space files: three ways to say values, conditions that look up only, and every mistake named."""

import json
from collections.abc import Callable

import pytest

from oppa import catalog
from oppa.errors import JobError, SpaceError
from oppa.problem.candidates import enumerate_candidates
from oppa.problem.configuration import PARAMETERS
from oppa.problem.presets import PRESETS
from oppa.problem.space import Facts, SearchSpace
from oppa.problem.space_file import divisors, narrow, read_space

MINIMAL = """
[parameters.dp]
divisors = "devices"
[parameters.tp]
divisors = "devices"
[parameters.pp]
values = [1]
[parameters.micro_batch]
divisors = "global_batch"
"""
LACKS = {"nanotron-h100": {"schedule", "recompute"}, "nanotron": {"schedule"}}
"""The Ultra-Scale Playbook did not vary these: the space is that of its measurements, or has no other choice."""
KNOBS = {"torch-long-context": {"cp", "sequence_parallel", "recompute_layers"}}
"""Knobs that the runner of a space honours by itself; `dp_shard` varies only on request."""
MakeFacts = Callable[..., Facts]


def read(text: str, facts: Facts) -> SearchSpace:
    return read_space(MINIMAL + text, name="mine", facts=facts)


@pytest.mark.parametrize("number", [1, 2, 36, 97, 4096])
def test_divisors_are_all_of_them(number: int) -> None:
    assert divisors(number) == [candidate for candidate in range(1, number + 1) if number % candidate == 0]


@pytest.mark.parametrize("name", catalog.names("search_spaces"))
def test_every_framework_s_space_is_read_and_searches_table_1(name: str, framework_space: Callable[..., SearchSpace]) -> None:
    space = framework_space(name, model="moe-32e")
    silent = {known.name for known in space.parameters if known.is_extra and not (known.words or known.env or known.changes == "learning")}
    assert silent == KNOBS.get(name, set())
    assert {"dp", "tp", "pp", "micro_batch", "zero_stage", "schedule", "recompute"} - LACKS.get(name, set()) <= set(space.names)
    assert all(constraint.why for constraint in space.constraints)
    assert SearchSpace.from_dict(space.to_dict(), space.facts) == space


def test_the_paper_s_space_has_all_of_table_1(framework_space: Callable[..., SearchSpace]) -> None:
    space = framework_space("colossalai", model="moe-32e")
    assert set(space.names) == set(PARAMETERS) - {"global_batch", "stage_layout"}
    assert all(len(known.choices) > 1 for known in space.parameters)
    for bucket in ("dp_bucket_mb", "zero_bucket_mb"):
        assert (space[bucket].values[0], space[bucket].values[-1]) == (1, 4096)


@pytest.mark.parametrize(
    ("given", "admitted"),
    [
        ({"schedule": "zb-h1"}, True),
        ({"schedule": "fast"}, False),
        ({"schedule": 3}, False),
        ({"model_chunks": 5}, True),
        ({"model_chunks": "5"}, True),
        ({"model_chunks": 0}, False),
        ({"model_chunks": "five"}, False),
        ({"stage_layout": "Ett|tL"}, True),
        ({"recompute": "some"}, False),
    ],
    ids=str,
)
def test_what_is_open_has_other_values_where_they_are_asked_for(
    given: dict[str, object], admitted: bool, framework_space: Callable[..., SearchSpace]
) -> None:
    space = framework_space("torch")
    wider = space.with_value(given)
    assert (wider != space) == admitted and space.with_value({}) == space
    for name in given if admitted else ():
        assert len(wider[name].choices) == len(space[name].choices) + 1
        assert list(wider[name].values) == sorted(wider[name].values) or name != "model_chunks"


def test_torch_has_every_family_and_shares_experts_out_over_replicas(framework_space: Callable[..., SearchSpace]) -> None:
    for model in PRESETS:
        candidates = enumerate_candidates(framework_space("torch", model=model))
        assert len(candidates) > 0
        assert (candidates.column("dp") % candidates.column("ep") == 0).all()
        assert (candidates.column("ep").max() > 1) == (PRESETS[model].experts > 1)


def test_a_space_says_how_its_framework_cuts_stages(framework_space: Callable[..., SearchSpace], make_facts: MakeFacts) -> None:
    assert framework_space("nanotron").balanced_stages and not framework_space("torch").balanced_stages
    space = framework_space("nanotron")
    assert SearchSpace.from_dict(json.loads(json.dumps(space.to_dict())), space.facts) == space
    with pytest.raises(SpaceError, match="`balanced_stages = 1` is not true or false"):
        read_space("balanced_stages = 1\n" + MINIMAL, name="mine", facts=make_facts())


def test_a_space_may_extend_another(framework_space: Callable[..., SearchSpace]) -> None:
    """A parameter that is stated again replaces the inherited one; all constraints hold."""
    first, space = framework_space("colossalai"), framework_space("colossalai-llama")
    assert space["ep"].values == (1,) and space.names == first.names
    assert all(space[name] == first[name] for name in set(first.names) - {"ep"})
    assert space.constraints[: len(first.constraints)] == first.constraints and len(space.constraints) == len(first.constraints) + 5


def test_a_range_has_its_powers_and_the_default(make_facts: MakeFacts) -> None:
    space = read("[parameters.dp_bucket_mb]\nlow = 1\nhigh = 100\nfactor = 4\ndefault = 25", make_facts())
    assert space["dp_bucket_mb"].values == (1, 4, 16, 25, 64)


def test_divisors_may_be_of_an_expression(make_facts: MakeFacts) -> None:
    space = read('[parameters.model_chunks]\ndivisors = "layers // 2 + devices"', make_facts())
    assert space["model_chunks"].values == (1, 2, 4, 8)


def test_without_a_default_the_first_value_is_it(make_facts: MakeFacts) -> None:
    space = read('[parameters.recompute]\nvalues = ["full", "none"]\n[parameters.zero_stage]\nvalues = [3, 1]', make_facts())
    assert (space["recompute"].default, space["zero_stage"].default) == ("full", 1)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[parameters.zero_stag]\nvalues = [0]", "`[parameters.zero_stag]` is not a parameter", "did you mean `zero_stage`?"),
        ("[parameters.ep]\nvalue = [1]", "`[parameters.ep]` has no key `value`", "did you mean `values`?"),
        ("[parameters.ep]", "`[parameters.ep]` must define its values exactly once", "give `values`, or"),
        ("[parameters.ep]\nvalues = [1]\nlow = 1\nhigh = 2", "`[parameters.ep]` must define its values exactly once", "give `values`, or"),
        ("[parameters.ep]\nlow = 1", "`[parameters.ep]` must define its values exactly once", "`low` and `high`"),
        ("[parameters.ep]\nvalues = [0]", "`0` cannot be a value of `ep`", "of type int, at least 1"),
        ("[parameters.ep]\nvalues = [1.5]", "`1.5` cannot be a value of `ep`", "of type int"),
        ("[parameters.ep]\nvalues = [true]", "`true` cannot be a value of `ep`", "of type int"),
        ("[parameters.overlap_p2p]\nvalues = [1]", "`1` cannot be a value of `overlap_p2p`", "of type bool"),
        ("[parameters.ep]\nvalues = []", "the values of `ep` are none", "at least one"),
        ("[parameters.ep]\nvalues = [1, 1]", "the values of `ep` are 1, 1", "list each value once"),
        ("[parameters.ep]\ndivisors = 'devices - 4'", "the values of `ep` are none", "at least one"),
        ("[parameters.ep]\nvalues = [1]\ndefault = 2", "the default of `ep`, 2, is not one of its values", "use one of 1"),
        ("[parameters.ep]\nvalues = [1]\nwhen = 'dp > 1 and schedul == 1'", "`schedul` at column 12 is not a known name", "use one of"),
        (
            "[parameters.ep]\nvalues = [1]\nwhen = 'ep > 1'",
            "the condition of `ep` uses `ep`",
            "use only parameters declared above [parameters.ep]",
        ),
        ("[[constraint]]\nexpression = 'dp >'\nwhy = ''", "`dp >` is not an expression", "an expression has"),
        ("[[constraint]]\nexpression = 'dp'\nwhy = ''", "`dp` at column 1 is a number", "an expression has"),
        ("[[constraint]]\nexpression = 'dp > 1'", "lacks `why`", "add `why"),
        ("[[constraint]]\nexpresion = 'dp > 1'\nwhy = ''", "has no key `expresion`", "did you mean `expression`?"),
        ("[parameters.ep", "`mine` is not TOML", "check `[parameters.ep`"),
    ],
)
def test_a_mistake_in_a_file_is_named(text: str, message: str, hint: str, make_facts: MakeFacts) -> None:
    with pytest.raises(SpaceError) as raised:
        read(text, make_facts())
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_some_parameters_are_indispensable(make_facts: MakeFacts) -> None:
    with pytest.raises(SpaceError, match="lacks `micro_batch`"):
        read_space(MINIMAL.split("[parameters.micro_batch]")[0], name="mine", facts=make_facts())


def test_a_condition_may_not_look_down(make_facts: MakeFacts) -> None:
    text = '[parameters.ep]\nvalues = [1]\nwhen = "zero_stage > 0"\n[parameters.zero_stage]\nvalues = [0, 1]'
    with pytest.raises(SpaceError) as raised:
        read(text, make_facts())
    assert raised.value.message == "search space `mine`: the condition of `ep` uses `zero_stage`, not declared above it"


def test_narrowing_keeps_the_space_s_order(framework_space: Callable[..., SearchSpace]) -> None:
    space = framework_space("torch")
    narrowed = narrow(space, {"recompute": ["full", "none"], "pp": 2}, honoured=space.names, runner="torch")
    assert (narrowed["recompute"].choices, narrowed["pp"].choices) == (("none", "full"), (2,))
    assert narrowed["recompute"].values == ("none", "selective", "full")


def test_what_a_runner_does_not_honour_stands_at_its_default(framework_space: Callable[..., SearchSpace]) -> None:
    narrowed = narrow(framework_space("deepspeed"), {"zero_bucket_mb": 954}, honoured=("dp", "tp", "pp"), runner="mine")
    assert (narrowed["zero_bucket_mb"].choices, narrowed["recompute"].choices, narrowed["dp"].choices) == ((954,), ("none",), (1, 2, 4))


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"pp": 5}, "`pp = 5` does not divide `devices = 4`", "use one of 1, 2, 4"),
        ({"pp": "2"}, '`pp = "2"` is not legal', "use one of 1, 2, 4"),
        ({"micro_batch": [2, 3]}, "`micro_batch = 3` does not divide", "use one of 1, 2, 4"),
        ({"micro_batch": [2, 4096]}, "`micro_batch = 4096` does not divide", "or state the largest batch of a profile as `global_batch`"),
        ({"zero_stage": [1, True]}, "`zero_stage = true` is not legal", "use one of 0, 1, 2, 3"),
        ({"recompute": "some"}, '`recompute = "some"` is not legal', 'use one of "none", "full"'),
        ({"recompute": []}, "`recompute = []` leaves nothing to choose", 'use some of "none", "full"'),
        ({"recomput": "full"}, "`[space.parameters]` has no parameter `recomput`", "did you mean `recompute`?"),
        ({"global_batch": 4}, "has no parameter `global_batch`", ""),
        (
            {"recompute": "full"},
            "the runner `mine` does not honour `recompute`",
            'leave it at "none"; the runner honours dp, pp, tp, zero_stage',
        ),
    ],
)
def test_a_choice_that_cannot_be_is_refused(
    given: dict[str, object], message: str, hint: str, framework_space: Callable[..., SearchSpace]
) -> None:
    with pytest.raises(JobError) as raised:
        narrow(framework_space("deepspeed"), given, honoured=("dp", "tp", "pp", "zero_stage"), runner="mine")
    assert message in raised.value.message
    assert hint in raised.value.hint


@pytest.mark.parametrize(("given", "count"), [({}, 1), ({"dp_shard": [0, 2, 4]}, 2)])
def test_groups_of_shards_divide_dp_and_vary_on_request(given: dict[str, object], count: int, make_facts: MakeFacts) -> None:
    fixed = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "zero_stage": 3, "micro_batch": 1, "recompute": "none", "dp_bucket_mb": 25}
    space = read_space(catalog.find("search_spaces", "torch-long-context").read_text(), name="long", facts=make_facts())
    narrowed = narrow(space, {**fixed, **given}, honoured=space.names, runner="torch")
    assert len(enumerate_candidates(narrowed)) == count
