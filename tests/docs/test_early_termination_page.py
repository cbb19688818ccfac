"""The page on early termination states the steps that complete trials take."""

import re
from pathlib import Path

import numpy as np

from oppa.problem.training import Limits
from oppa.tuning.stopping import precise_after

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "early-termination.md"


def test_its_table_has_the_steps_after_which_trials_are_complete() -> None:
    rows = re.findall(r"\| ([\d.]+) s \| ([\d.]+) s \| (\d+) \|", PAGE.read_text())
    starts, steps_s, counts = np.array(rows, dtype=float).T
    assert len(counts) >= 3
    assert precise_after(steps_s, starts, Limits()).tolist() == counts.tolist()
