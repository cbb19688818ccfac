"""A framework's environment carries oppa without its dependencies: training core and trial protocol need torch and numpy alone."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from importlib.metadata import requires

allowed = ("torch", "numpy")
lacking = {word.split(">")[0].split("=")[0].split("<")[0].split("[")[0].split(";")[0].strip() for word in requires("oppa-tuner")}

class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in lacking - {*allowed}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Lacking())
import oppa.training.run.trial, oppa.trials.trial_folder
print(*sorted({"pydantic", "typer", "pandas", "botorch"} & lacking))
"""


@pytest.mark.slow
def test_the_training_core_loads_with_torch_and_numpy_alone() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["botorch", "pandas", "pydantic", "typer"]
