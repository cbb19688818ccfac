"""The output of `oppa train` stays in its columns on a narrow terminal."""

import os
import shlex
import sys

import pexpect
import pytest

CODE = """
from pathlib import Path
from oppa.cli.views.run_view import print_outcome, print_worth
from oppa.training.run.supervision import Ending, Outcome
from oppa.trials.trial import TrialResult
last = TrialResult(outcome="failed", seconds=1.0, cause="the ranks ended, as the data set of the job cannot be read")
print_outcome(Path("r"), Outcome(ending=Ending.FAILED, attempts=1, last=last, folder=Path("r")), [])
print_worth({"gain": 0.19, "regret": 0.032, "changed": 1.0})
"""


@pytest.mark.slow
def test_a_long_row_goes_on_below_its_own_text() -> None:
    environment = os.environ | {"COLUMNS": "60", "TERM": "dumb"}
    said, status = pexpect.run(shlex.join([sys.executable, "-c", CODE]), env=environment, withexitstatus=True)
    titles = [line[:8].strip() for line in said.decode().splitlines()]
    assert status == 0 and titles == ["run", "cause", "", "stderr", "goodput", ""], said.decode()
