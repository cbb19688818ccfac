"""Launch lines of real libraries, as their documents have them, are tuned without a job file.

The winner's line is printed and runs. Trials change no byte of the folders that the line names. A library that is missing here is a
skipped test. `oppa bench libraries` checks the winners as well.
"""

import json
import subprocess

import pytest

from experiments.libraries.canaries import digest
from experiments.libraries.lines import LIBRARIES, variables
from tests.command_line import Oppa
from tests.sampling import nightly

LIMITS = ["--trials", "3", *(word for name in ("device_lock=false", "q_min=3", "q_max=4") for word in ("--set", f"limits.{name}"))]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", ["transformers", *nightly(*(name for name in LIBRARIES if name != "transformers"))])
def test_a_line_is_tuned_without_a_job_file_and_the_printed_line_runs(name: str, tmp_path, monkeypatch) -> None:
    library, oppa = LIBRARIES[name], Oppa(tmp_path)
    if not library.is_installed:
        pytest.skip(f"{name} is not installed here")
    library.fill(tmp_path)
    for variable, value in variables().items():
        monkeypatch.setenv(variable, value)
    before = digest(tmp_path)
    settings = (word for each in library.settings for word in ("--set", each))
    done = oppa("tune", "--json", "--study", "s", *LIMITS, *settings, "--", *library.words)
    found = json.loads(done.stdout)
    assert digest(tmp_path) == before
    assert "your line" in done.stderr
    assert found["best"]["steps_per_s"] >= found["baseline"]["steps_per_s"]
    words = found["launch_line"]["words"]
    assert not [word for word in words if "{" in word]
    ran = subprocess.run(["env", *words], cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False)
    assert ran.returncode == 0 and digest(tmp_path) != before, ran.stderr
