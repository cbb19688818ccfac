"""While a layout becomes another one, no rank needs more memory than training in the larger of the two."""

import dataclasses
import functools
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from oppa.problem.configuration import Configuration
from oppa.problem.presets import PRESETS
from oppa.training.reshard.shards import Shard, TensorKey, layout_of
from oppa.training.reshard.transfers import evenly
from tests.training.conftest import ROOT
from tests.training.layouts import configurations
from tests.training.test_reshard import MODELS

MODEL = dataclasses.replace(PRESETS["tiny-16m"], seq_len=8)
"""61 MiB of weights and short texts: what there is to hold are weights, gradients and moments."""
TOLERANCE = 0.05
"""Relative: pages that hold many small tensors go back when the last of them does, and each group of gloo's has buffers of its own."""

DP4, PP4, ZERO3 = {"dp": 4}, {"dp": 1, "pp": 4}, {"dp": 4, "zero_stage": 3}
DP2_PP2, TP2_PP2 = {"dp": 2, "pp": 2}, {"dp": 1, "tp": 2, "pp": 2}
CHANGES = {
    "a stage each, and back": [DP4, PP4, DP4],
    "rows of stages, and back": [PP4, ZERO3, PP4],
    "parts of stages": [DP2_PP2, TP2_PP2, DP2_PP2, ZERO3, DP4],
}
AND_BACK = [name for name, layouts in CHANGES.items() if layouts[0] == layouts[-1]]

Memory = dict[str, list[list[int]]]


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Memory]:
    """Of a chain of layouts, what ranks had, in bytes by what (`memory_ranks`), number in the chain, and rank."""

    @functools.cache
    def measured(name: str) -> Memory:
        folder = tmp_path_factory.mktemp("memory")
        values = [Configuration(**layout, global_batch=4, micro_batch=1).to_dict() for layout in CHANGES[name]]  # type: ignore[arg-type]
        (folder / "ORDER.json").write_text(json.dumps({"model": dataclasses.asdict(MODEL), "layouts": values}))
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-P", str(Path(__file__).with_name("memory_ranks.py")), str(folder / "ORDER.json")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-5000:]
        ranks = [json.loads((folder / f"MEMORY-{rank}.json").read_text()) for rank in range(4)]
        return {what: list(zip(*(rank[what] for rank in ranks), strict=True)) for what in ranks[0]}

    return measured


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_needs_no_more_memory_than_the_larger_of_its_layouts(name: str, memory: Callable[[str], Memory]) -> None:
    training, changing = (list(map(max, memory(name)[what])) for what in ("training", "changing"))
    for before, change, after in zip(training, changing, training[1:], strict=False):
        assert change <= max(before, after) * (1 + TOLERANCE), f"{before >> 20}, {change >> 20}, {after >> 20} MiB"


@pytest.mark.slow
@pytest.mark.parametrize("name", AND_BACK)
def test_nothing_of_the_layout_between_is_left_behind(name: str, memory: Callable[[str], Memory]) -> None:
    first, _, last = memory(name)["tensors"]
    assert last == pytest.approx(first, abs=1024), "give or take some scalars"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["tied", "mixture"])
def test_every_rank_gives_away_at_the_pace_at_which_it_gets(family: str) -> None:
    model = dataclasses.replace(MODELS[family], layers=32)  # a rank has many tensors, each of them little of all
    every = configurations(model, 4)
    for source, target in itertools.product(every[::7], every[1::7]):
        before, after = layout_of(model, source), layout_of(model, target)
        for rank in range(4):
            given, got = held_bytes(before[rank]), held_bytes(after[rank])
            held = [given.total(), *(got[key] - given[key] for key in evenly(before, after))]
            assert max(itertools.accumulate(held)) <= max(given.total(), got.total()) * (1 + TOLERANCE), (source.id, target.id, rank)


def held_bytes(holdings: Iterable[Shard]) -> Counter[TensorKey]:
    found = Counter[TensorKey]()
    for holding in holdings:
        found[holding.key] += holding.nbytes
    return found
