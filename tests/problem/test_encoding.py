"""Encoding: a point of the unit cube for each candidate, never the same for two."""

from collections.abc import Callable

import numpy as np
import pytest

from oppa.problem.candidates import enumerate_candidates
from oppa.problem.encoding import column_names, encode
from oppa.problem.space import SearchSpace

MakeSpace = Callable[..., SearchSpace]


@pytest.mark.parametrize("name", ["torch", "deepspeed", "colossalai", "megatron"])
def test_points_lie_in_the_unit_cube_and_tell_candidates_apart(name: str, framework_space: MakeSpace) -> None:
    candidates = enumerate_candidates(framework_space(name))
    points = encode(candidates)
    assert points.dtype == np.float64
    assert points.shape == (len(candidates), len(column_names(candidates)))
    assert (points.min(axis=0) == 0).all() and (points.max(axis=0) == 1).all()
    assert len(np.unique(points, axis=0)) == len(candidates)


def test_doublings_are_equal_steps(framework_space: MakeSpace) -> None:
    candidates = enumerate_candidates(framework_space("torch"))
    dp = encode(candidates)[:, column_names(candidates).index("dp")]
    assert [dp[candidates.column("dp") == degree][0] for degree in (1, 2, 4)] == [0, 0.5, 1]


def test_levels_are_equal_steps(framework_space: MakeSpace) -> None:
    candidates = enumerate_candidates(framework_space("torch"))
    recompute = encode(candidates)[:, column_names(candidates).index("recompute")]
    assert [recompute[candidates.column("recompute") == level][0] for level in ("none", "selective", "full")] == [0, 0.5, 1]


def test_schedules_are_equally_far_apart(framework_space: MakeSpace) -> None:
    candidates = enumerate_candidates(framework_space("torch"))
    columns = [column for column, name in enumerate(column_names(candidates)) if name.startswith("schedule=")]
    corners = np.unique(encode(candidates)[:, columns], axis=0)
    assert np.array_equal(corners, np.eye(6)[::-1])


def test_what_never_varies_has_no_column(framework_space: MakeSpace) -> None:
    space = framework_space("torch").restricted("pp", 1).restricted("recompute", "full")
    assert column_names(enumerate_candidates(space)) == ["dp", "tp", "micro_batch", "zero_stage", "dp_bucket_mb"]


def test_one_candidate_is_a_point_without_coordinates(framework_space: MakeSpace) -> None:
    space = framework_space("deepspeed", devices_per_host=1, global_batch=1).restricted("recompute", "none")
    assert encode(enumerate_candidates(space)).shape == (1, 0)
