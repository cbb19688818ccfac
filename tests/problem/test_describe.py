"""The description summarises the candidates."""

from collections.abc import Callable
from pathlib import Path

from oppa.problem.candidates import enumerate_candidates
from oppa.problem.describe import by_degrees, job, varying
from oppa.problem.job import load_job
from oppa.problem.space import SearchSpace


def test_counts_by_degrees_add_up(framework_space: Callable[..., SearchSpace]) -> None:
    candidates = enumerate_candidates(framework_space("torch"))
    counts = by_degrees(candidates)
    assert sum(counts.values()) == len(candidates)
    assert list(counts) == [(4, 1, 1), (2, 1, 2), (2, 2, 1), (1, 1, 4), (1, 2, 2), (1, 4, 1)]
    assert counts[4, 1, 1] == sum(configuration.dp == 4 for configuration in candidates)


def test_a_preset_with_other_dimensions_is_not_called_by_its_name_alone(write_job: Callable[..., Path]) -> None:
    preset = 'preset = "tiny-16m"'
    assert job(load_job(write_job((preset, preset + "\nseq_len = 64")))).startswith("tiny-16m, ")
    assert job(load_job(write_job((preset, preset + "\nlayers = 4")))).startswith("tiny-16m with other dimensions, ")


def test_what_varies_is_shown_with_its_values(framework_space: Callable[..., SearchSpace]) -> None:
    space = framework_space("torch").restricted("pp", 1).restricted("recompute", "none")
    assert varying(enumerate_candidates(space)) == {
        "dp": [1, 2, 4],
        "tp": [1, 2, 4],
        "micro_batch": [1, 2, 4, 8],
        "zero_stage": [0, 1, 2, 3],
        "dp_bucket_mb": [1, 5, 25, 100],
    }
