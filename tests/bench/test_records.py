"""Each record under results/search, and of experiments, follows from the raw log in its folder to the last byte."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from experiments.goodput import page as goodput
from experiments.lib import recorded_page
from experiments.norm_test.experiment import DDP, FSDP
from experiments.policies import page as policies
from experiments.trainers_goodput import experiment as trainers_goodput
from oppa import catalog
from oppa.bench.ci import COMPARISONS, read_reference
from oppa.bench.runs import Log
from oppa.bench.search_page import LOG, PAGE, page

RESULTS = catalog.root() / "results"
DECLARED = (DDP, FSDP, trainers_goodput.CPU, trainers_goodput.GPU)
EXPERIMENTS = {"goodput": goodput.page, "policies": policies.page, **{each.name: each.page for each in DECLARED}}
RECORDED_RUNS = [name for name in EXPERIMENTS if (RESULTS / name / recorded_page.PAGE).exists()]
RECORDS = sorted(path.parent for path in (RESULTS / "search").rglob(LOG))
ALONE = ("cpu", "long-context")
"""Suites whose records of `--suite all` the default run checks; it leaves the others to the nightly run."""


SOME = [pytest.param(each, marks=[pytest.mark.nightly] * (each.parent.name == "all" and each.name not in ALONE)) for each in RECORDS]


def without_clip_ids(figures: Mapping[str, str]) -> dict[str, str]:
    """Figures without the names of clip paths: matplotlib hashes coordinates to the last bit, which differs between processors."""
    return {name: re.sub(r"\bp[0-9a-f]{10}\b", "p", svg) for name, svg in figures.items()}


@pytest.mark.slow
@pytest.mark.parametrize("folder", SOME, ids=lambda folder: str(folder.relative_to(RESULTS)))
def test_the_page_follows_from_its_log(folder: Path) -> None:
    text, figures = page(folder / LOG)
    assert (folder / PAGE).read_text() == text
    assert without_clip_ids({path.name: path.read_text() for path in folder.glob("*.svg")}) == without_clip_ids(figures)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED_RUNS)
def test_so_do_those_of_real_experiments(name: str) -> None:
    folder = RESULTS / name
    text, figures = EXPERIMENTS[name](folder)
    assert (folder / recorded_page.PAGE).read_text() == text
    assert without_clip_ids({path.name: path.read_text() for path in folder.glob("*.svg")}) == without_clip_ids(figures)


@pytest.mark.parametrize("folder", RECORDS, ids=lambda folder: str(folder.relative_to(RESULTS)))
def test_every_record_states_its_origin(folder: Path) -> None:
    log = Log.load(folder / LOG)
    assert log.origins()
    for origin in log.origins():
        assert (
            {"command", "date", "oppa", "software", "hardware"} <= origin.keys()
            and "commit" in origin["oppa"]
            and "+changes" not in origin["oppa"]
        )


def test_the_reference_of_continuous_integration_has_every_play() -> None:
    recorded = {(score.suite, score.designer, score.seed) for score in read_reference()}
    wanted = {(each.suite, name, seed) for each in COMPARISONS for name in each.designers for seed in range(each.seeds)}
    assert recorded == wanted
