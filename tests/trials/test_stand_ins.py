"""A trial changes no byte of what a program writes by default, or by its file of settings; the launch line itself does."""

import hashlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oppa.problem.training import Limits
from oppa.trials.local import LocalLauncher
from oppa.trials.runner import load_runner
from oppa.trials.trial import run_trial
from oppa.trials.trial_folder import TrialSpec
from oppa.tuning.launch_line.line_job import load_line
from tests.trials.conftest import STUDY

LIMITS = Limits(trial_time_s=60, grace_s=1, q_max=4)
BATCH = "--batch '{micro_batch=2:1,2}' --accumulate '{num_microbatches}'"
AXOLOTL = "micro_batch_size: 2\ngradient_accumulation_steps: 2\nbase_model: org/model\n"
LINES = {
    "a default of the program": (f"python defaults.py {BATCH}", ""),
    "a positional file": (f"python settings_program.py config.yaml {BATCH}", "output_dir: canary/out\n"),
    "a file that an option names": (f"python settings_program.py --cfg=config.yaml {BATCH}", "output_dir: canary/out\n"),
    "axolotl's own folders": ("python -m axolotl.cli.train config.yaml", AXOLOTL),
    "axolotl's file": (
        "python -m axolotl.cli.train config.yaml",
        f"{AXOLOTL}output_dir: canary/out\ndataset_prepared_path: last_run_prepared\n",
    ),
}
WRITTEN = ("canary/out", "model-out", "last_run_prepared")
pytestmark = pytest.mark.slow


def digest(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in the folders of the user."""
    files = (path for name in WRITTEN for path in (folder / name).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("name", LINES)
def test_a_trial_leaves_the_users_folders_as_they_are(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line, config = LINES[name]
    shutil.copytree(Path(__file__).parent / "stand_ins", tmp_path, dirs_exist_ok=True)
    for folder in WRITTEN:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "mine.bin").write_text("mine")
    (tmp_path / "config.yaml").write_text(config)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    batch = ["batch.global_batch=4"] if "batch" in line else []
    made = load_line(
        shlex.split(line), settings=["cluster.devices_per_host=1", "cluster.device=CPU", 'cluster.memory_limit="1 GiB"', *batch]
    )
    before, configuration = digest(tmp_path), made.problem.candidates().configuration(0)
    with LocalLauncher(load_runner(made.problem.runner), study=STUDY, grace_s=1) as launcher:
        spec = TrialSpec.of(made.problem, configuration, study=STUDY, trial=0, steps=4)
        result = run_trial(launcher, tmp_path / "s" / "trials" / "0", spec, limits=LIMITS)
    assert (result.outcome, result.steps) == ("completed", 4), (result.cause, result.traceback)
    assert digest(tmp_path) == before
    assert list((tmp_path / "s").rglob("writes/*"))
    own = [re.sub(r"\{.*\}", "2", word) for word in shlex.split(line)]
    subprocess.run(own, check=True, capture_output=True, timeout=60)
    assert digest(tmp_path) != before
