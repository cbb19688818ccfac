"""The files of the winner are those of one configuration, however many tuners write them."""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.study import Study
from oppa.tuning.export_best import write_best
from tests.tuning.conftest import trial_of


@pytest.fixture
def winners(candidates: Sequence[Configuration]) -> tuple[Configuration, Configuration]:
    """Return a configuration that every framework can express, and one with tensor parallelism, which some cannot."""
    return next(each for each in candidates if each.tp == each.pp == 1), next(each for each in candidates if each.tp > 1)


@pytest.mark.slow
def test_tuners_that_end_together_write_whole_folders(study: Study, limited: Problem, winners: tuple[Configuration, Configuration]) -> None:
    def write(number: int) -> None:
        with Study(study.folder) as own:
            write_best(own, limited, trial_of(number, winners[number % 2], 1.0))

    with ThreadPoolExecutor(4) as tuners:
        list(tuners.map(write, range(24)))
    best = study.folder / "best"
    configuration = Configuration.from_dict(json.loads((best / "configuration.json").read_text()))
    assert json.loads((best / "trial.json").read_text())["configuration"] == configuration.to_dict()
    assert f": {configuration.id}\n" in (best / "README.md").read_text()
    assert all(any(folder.iterdir()) for folder in best.iterdir() if folder.is_dir())


def test_the_winner_is_written_whatever_the_bytes_of_its_path(
    tmp_path: Path, limited: Problem, winners: tuple[Configuration, Configuration]
) -> None:
    folder = tmp_path / os.fsdecode(b"\xff-study")
    with Study.create(folder, limited.to_dict(), limited.fingerprint) as study:
        write_best(study, limited, trial_of(1, winners[0], 1.0))
    assert os.fsencode(folder) in (folder / "best" / "README.md").read_bytes()
