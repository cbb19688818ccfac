"""The comparison of two sizes with a plain search: its tasks, its log, and its sums."""

import dataclasses
import json

import numpy as np
import pytest

from experiments.proxy.page import REGRET, SHARE, sections, to_json
from experiments.proxy.run import LOG, TwoSizeComparison, _append, comparisons, read_log
from experiments.proxy.tasks import load, names_of
from experiments.registry import PROXY_MEASURED
from oppa import catalog
from oppa.errors import InputError

GOOD = TwoSizeComparison(
    task="1B-32",
    seed=0,
    hosts=(16, 2),
    layers=(16, 16),
    matched=0.5,
    regret=0.01,
    first_regret=0.02,
    failed=0,
    gpu_hours=(1.0, 9.0),
    plain_regret=0.0,
    plain_gpu_hours=100.0,
    plain_regret_at_same=0.03,
    exhaustive_gpu_hours=1000.0,
)
BAD = dataclasses.replace(GOOD, seed=1, regret=0.5, gpu_hours=(10.0, 20.0), plain_regret_at_same=0.0)
FILES = {"priors/memory.toml": "1"}
measured = pytest.mark.skipif(not (catalog.data_folder() / "nanotron_h100.csv").is_file(), reason="needs the measured runs")


def test_what_is_in_the_log_is_not_run_again(tmp_path) -> None:
    lines = [{"files": FILES}, dataclasses.asdict(GOOD), dataclasses.asdict(BAD)]
    (tmp_path / LOG).write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    assert comparisons(["1B-32"], 2, tmp_path, print, FILES) == [GOOD, BAD]
    assert read_log(None, FILES) == {} == read_log(tmp_path / "nothing", FILES)


def test_a_torn_line_is_lost_alone(tmp_path) -> None:
    (tmp_path / LOG).write_text(f'{{"files": {json.dumps(FILES)}}}\n{json.dumps(dataclasses.asdict(GOOD))}\n{{"task": "1B-3')
    assert list(read_log(tmp_path, FILES).values()) == [GOOD]
    _append(tmp_path, dataclasses.asdict(BAD), FILES)
    assert list(read_log(tmp_path, FILES).values()) == [GOOD, BAD]
    (tmp_path / LOG).write_text("")
    assert read_log(tmp_path, FILES) == {}


def test_a_folder_that_cannot_be_written_is_refused_before_anything_runs(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file` cannot be written"):
        comparisons([], 1, tmp_path / "file", pytest.fail, FILES)


@pytest.mark.parametrize("first", [{"files": {**FILES, "priors/memory.toml": "2"}}, dataclasses.asdict(GOOD)], ids=["other", "none stated"])
def test_comparisons_with_other_files_are_not_taken(first, tmp_path) -> None:
    (tmp_path / LOG).write_text(f"{json.dumps(first)}\n{json.dumps(dataclasses.asdict(GOOD))}\n")
    with pytest.raises(InputError, match=r"comparisons with other files: priors/memory\.toml"):
        comparisons(["1B-32"], 1, tmp_path, print, FILES)


def test_the_page_counts_losses() -> None:
    figures = to_json([GOOD, BAD])["kinds"]["nanotron"]
    assert (GOOD.share, BAD.share) == (0.1, 0.3)
    assert (figures["runs"], figures["within_regret"], figures["within_share"], figures["within_both"]) == (2, 1, 1, 1)
    assert (figures["better_than_plain_at_same"], figures["worse_than_plain_at_same"]) == (1, 1)
    assert figures["worst_regret"] == 0.5 and REGRET < SHARE
    summary, every = sections([GOOD, BAD])
    assert len(every.rows) == 2 and all(len(row) == len(summary.columns) for row in summary.rows)


@measured
@pytest.mark.parametrize("name", [name for name in PROXY_MEASURED if name.startswith("1B")])
def test_rows_stand_for_rows_with_the_same_layout_on_fewer_nodes(name) -> None:
    sizes = load(name)
    ratio = sizes.full.problem.cluster.hosts / sizes.small.problem.cluster.hosts
    assert ratio > 1 and sizes.proxy.matched.any()
    for row in np.flatnonzero(sizes.proxy.matched):
        large, small = sizes.full.candidates.configuration(row), sizes.small.candidates.configuration(sizes.proxy.stand_in[row])
        assert (large.tp, large.pp, large.micro_batch, large.dp) == (small.tp, small.pp, small.micro_batch, small.dp * ratio)


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(InputError, match="`3B-16` is not a task"):
        names_of(["3B-16"])
