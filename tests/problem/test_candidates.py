"""The candidates are exactly the valid configurations, each once, in an order that is the same everywhere."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oppa.errors import SpaceError
from oppa.problem.candidates import enumerate_candidates
from oppa.problem.configuration import Configuration
from oppa.problem.space import SearchSpace

FRAMEWORKS = ("torch", "deepspeed", "colossalai", "megatron")
MakeSpace = Callable[..., SearchSpace]


def brute_force(space: SearchSpace) -> Iterator[Configuration]:
    """The definition: of all combinations those that are canonical and satisfy every constraint, judged by Python itself."""
    conditions = {known.name: compile(known.when.text, "when", "eval") for known in space.parameters if known.when}
    constraints = [compile(constraint.expression.text, "constraint", "eval") for constraint in space.constraints]
    domains = [dict.fromkeys((*known.choices, known.default)) for known in space.parameters]
    for combination in itertools.product(*domains):
        values = {**space.facts, **dict(zip(space.names, combination, strict=True))}
        values["num_microbatches"] = values["global_batch"] // (values["dp"] * values["micro_batch"])
        if not all(eval(constraint, {}, values) for constraint in constraints):
            continue
        active = {known.name: known.name not in conditions or eval(conditions[known.name], {}, values) for known in space.parameters}
        if all(values[known.name] in (known.choices if active[known.name] else (known.default,)) for known in space.parameters):
            yield Configuration(global_batch=values["global_batch"], **dict(zip(space.names, combination, strict=True)))


def small(space: SearchSpace, draw: st.DataObject) -> SearchSpace:
    """The space with at most three choices of each parameter, so that brute force is quick."""
    for known in space.parameters:
        kept = draw.draw(st.sets(st.sampled_from(range(len(known.values))), min_size=1, max_size=1 if "_mb" in known.name else 3))
        space = space.restricted(known.name, *(known.values[position] for position in sorted(kept)))
    return space


@pytest.mark.slow
@pytest.mark.parametrize("name", FRAMEWORKS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_they_are_what_brute_force_finds(name: str, framework_space: MakeSpace, draw: st.DataObject) -> None:
    facts = {"global_batch": draw.draw(st.sampled_from([4, 6, 8])), "devices_per_host": draw.draw(st.sampled_from([1, 2, 4, 6]))}
    space = small(framework_space(name, **facts), draw)
    found = list(enumerate_candidates(space))
    assert len(set(found)) == len(found)
    assert set(found) == set(brute_force(space))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_candidate_is_found_at_its_place(name: str, framework_space: MakeSpace) -> None:
    candidates = enumerate_candidates(framework_space(name))
    for index in range(0, len(candidates), 7):
        assert candidates.index_of(candidates.configuration(index)) == index


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_ids_tell_candidates_apart(name: str, framework_space: MakeSpace) -> None:
    candidates = enumerate_candidates(framework_space(name))
    assert len({configuration.id for configuration in candidates}) == len(candidates) > 100


@pytest.mark.parametrize(
    "changes",
    [{"dp": 3}, {"dp": 4, "tp": 4}, {"zero_bucket_mb": 7}, {"dp": 1, "tp": 4, "zero_stage": 1}, {"global_batch": 16}],
    ids=["illegal value", "invalid", "another framework's", "not canonical", "another batch"],
)
def test_what_is_no_candidate_has_no_place(changes: dict[str, int], framework_space: MakeSpace) -> None:
    candidates = enumerate_candidates(framework_space("torch"))
    stranger = Configuration(**{"dp": 4, "global_batch": 8, "micro_batch": 1, **changes})
    with pytest.raises(SpaceError, match="is not a valid configuration of the space `torch`"):
        candidates.index_of(stranger)


def test_columns_are_the_configurations_values(framework_space: MakeSpace) -> None:
    candidates = enumerate_candidates(framework_space("torch"))
    for name in ("dp", "schedule", "recompute", "num_microbatches", "overlap_p2p"):
        assert candidates.column(name).tolist() == [getattr(configuration, name) for configuration in candidates]


def test_a_parameter_that_a_space_lacks_stands_at_its_default(framework_space: MakeSpace) -> None:
    candidates = enumerate_candidates(framework_space("deepspeed"))
    assert set(candidates.column("overlap_p2p").tolist()) == {False}
    assert set(candidates.column("global_batch").tolist()) == {8}


def test_the_default_order_is_the_one_defined(framework_space: MakeSpace) -> None:
    candidates = enumerate_candidates(framework_space("torch"))
    order = [candidates.configuration(index) for index in candidates.default_order()]
    assert [configuration.id for configuration in order[:6]] == [
        "dp4_tp1_pp1_z0_mbs1",
        "dp4_tp1_pp1_z1_mbs1",
        "dp4_tp1_pp1_z2_mbs1",
        "dp4_tp1_pp1_z3_mbs1",
        "dp2_tp1_pp2_z0_mbs1",
        "dp2_tp1_pp2_z1_mbs1",
    ]
    keys = [(-configuration.dp, configuration.tp, configuration.pp, configuration.zero_stage) for configuration in order]
    assert keys == sorted(keys)
    assert order[-1].id == "dp1_tp4_pp1_z0_mbs1"


def test_the_default_keeps_to_the_framework_s_own_values(framework_space: MakeSpace) -> None:
    candidates = enumerate_candidates(framework_space("colossalai"))
    default = candidates.configuration(candidates.default_order()[0])
    assert (default.dp_bucket_mb, default.zero_bucket_mb, default.overlap_zero_comm, default.recompute) == (25, 24, True, "none")


def test_a_job_that_excludes_the_default_gets_the_nearest(framework_space: MakeSpace) -> None:
    space = (
        framework_space("torch")
        .restricted("micro_batch", 2, 8)
        .restricted("recompute", "selective", "full")
        .restricted("dp_bucket_mb", 1, 100)
    )
    candidates = enumerate_candidates(space)
    first = candidates.configuration(candidates.default_order()[0])
    assert (first.dp, first.micro_batch, first.recompute, first.dp_bucket_mb) == (4, 2, "selective", 100)


def test_there_is_always_a_default(framework_space: MakeSpace) -> None:
    space = framework_space("torch").restricted("pp", 4).restricted("schedule", "interleaved")
    candidates = enumerate_candidates(space)
    assert candidates.configuration(candidates.default_order()[0]).id == "dp1_tp1_pp4_z0_mbs1_mc2_interleaved"


def test_an_empty_space_has_no_default(framework_space: MakeSpace) -> None:
    candidates = enumerate_candidates(framework_space("torch").restricted("pp", 4).restricted("tp", 4))
    assert len(candidates) == len(candidates.default_order()) == len(candidates.triples()) == 0


def test_triples_number_the_degrees(framework_space: MakeSpace) -> None:
    candidates = enumerate_candidates(framework_space("torch"))
    degrees = list(zip(*(candidates.column(name).tolist() for name in ("dp", "tp", "pp")), strict=True))
    triples = candidates.triples().tolist()
    assert set(triples) == set(range(len(set(degrees))))
    assert len(set(zip(triples, degrees, strict=True))) == len(set(degrees))


def test_removals_are_counted(framework_space: MakeSpace) -> None:
    space = framework_space("torch").restricted("pp", 4)
    law, *_ = enumerate_candidates(space).removed
    assert law == 3 * 3 - 1  # of dp, tp in {1, 2, 4} one pair is left beside pp = 4


ORDER = """
import hashlib
from oppa import catalog
from oppa.problem.candidates import enumerate_candidates
from oppa.problem.cluster import Cluster
from oppa.problem.presets import PRESETS
from oppa.problem.problem import facts_of
from oppa.problem.space_file import read_space
from oppa.problem.training import Training

facts = facts_of(PRESETS["tiny-4m"], 8, Cluster(devices_per_host=4, memory_limit_bytes=1), Training())
candidates = enumerate_candidates(read_space(catalog.find("search_spaces", "torch").read_text(), name="torch", facts=facts))
print(hashlib.sha256(repr([*candidates, *candidates.default_order()]).encode()).hexdigest())
"""


@pytest.mark.slow
def test_the_order_does_not_depend_on_the_process() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", ORDER], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


MILLION = """
import dataclasses, resource
from oppa import catalog
from oppa.problem.candidates import enumerate_candidates
from oppa.problem.cluster import Cluster
from oppa.problem.encoding import encode
from oppa.problem.model import Model
from oppa.problem.problem import facts_of
from oppa.problem.space_file import read_space
from oppa.problem.training import Training

model = Model(layers=96, hidden=12288, heads=96, kv_heads=96, ffn=49152, vocab=50257, seq_len=2048)
facts = facts_of(model, 15360, Cluster(hosts=384, devices_per_host=8, device="H100", memory_limit_bytes=1), Training(precision="bf16"))
candidates = enumerate_candidates(read_space(catalog.find("search_spaces", "colossalai").read_text(), name="colossalai", facts=facts))
encode(candidates), candidates.default_order(), candidates.triples(), candidates.index_of(candidates.configuration(1000))
print(len(candidates), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
def test_a_million_candidates_fit_in_two_gib() -> None:
    output = subprocess.run([sys.executable, "-c", MILLION], capture_output=True, text=True, check=True).stdout
    count, peak_bytes = map(int, output.split())
    assert count >= 1_000_000
    assert peak_bytes < 2 * 2**30
