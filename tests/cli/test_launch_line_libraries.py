"""Launch lines of real libraries, as their documents have them, are tuned without a job file.

The winner's line is printed and runs. Trials change no byte of the folders that the line names. Each line starts with the interpreter that
has its library: that of LIBRARIES_PYTHON, or of oppa's own environment of DeepSpeed. A library that is nowhere is a skipped test, with a
reason that names what to install. `oppa bench libraries` checks the winners as well.
"""

import dataclasses
import json
import subprocess

import pytest

from experiments.libraries.canaries import digest
from experiments.libraries.lines import LIBRARIES, PYTHON, Library
from tests.command_line import Oppa
from tests.sampling import nightly

LIMITS = ["--trials", "2", *(word for name in ("device_lock=false", "q_min=3", "q_max=4") for word in ("--set", f"limits.{name}"))]

SHORT = {"torchrun --nproc_per_node 2": "python", "--max_steps 120": "--max_steps 12", "--save_steps 40": "--save_steps 6"}
"""Words of the line of Transformers in the default run, whose only process takes fewer steps."""
FEW = "space.parameters.dataloader_num_workers"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def shortened(library: Library) -> Library:
    """Return the library with a shorter line, of which the micro-batch alone varies."""
    line = library.line
    for words, fewer in SHORT.items():
        assert words in line
        line = line.replace(words, fewer)
    settings = (f"{FEW}=[0]" if each.startswith(FEW) else each for each in library.settings)
    return dataclasses.replace(library, line=line, settings=tuple(settings))


CASES = [("transformers", shortened(LIBRARIES["transformers"])), *nightly(*LIBRARIES.items())]


@pytest.mark.parametrize(("name", "library"), CASES)
def test_a_line_is_tuned_without_a_job_file_and_the_printed_line_runs(name: str, library: Library, tmp_path, monkeypatch) -> None:
    oppa = Oppa(tmp_path)
    if not library.is_installed:
        pytest.skip(f"{name} is in no environment: {library.installing}, or name an interpreter that has it in {PYTHON}")
    library.fill(tmp_path)
    for variable, value in library.variables.items():
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
