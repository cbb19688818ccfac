"""A trial has a copy of each configuration file that its launch line names, also of files of one name."""

import dataclasses
import json
import sys

import pytest

from oppa import catalog
from oppa.problem.command import ConfigFile, LaunchCommand
from oppa.problem.training import Limits
from oppa.trials.local import LocalLauncher
from oppa.trials.runner import load_runner
from oppa.trials.trial import run_trial
from tests.trials.conftest import STUDY, script_spec

PROGRAM = "import sys\nfor name in sys.argv[1:]: print(' '.join(open(name).read().split()))"


@pytest.fixture
def printed(tmp_path):
    """Return what a trial's copies contain; `files` has the content of each file by path, and the keys of its trials by placeholder."""

    def run(files):
        (tmp_path / "program.py").write_text(PROGRAM)
        for path, content, _, _ in files:
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_text(json.dumps(content))
        declared = tuple(ConfigFile(name=name, path=str(tmp_path / path), keys=keys) for path, _, name, keys in files)
        words = (f"{{{name}}}" for _, _, name, _ in files)
        command = LaunchCommand(argv=(sys.executable, str(tmp_path / "program.py"), *words), files=declared)
        with LocalLauncher(load_runner(catalog.find("runners", "command")), study=STUDY, grace_s=1) as launcher:
            spec = dataclasses.replace(script_spec(steps=4, ranks=1), command=command)
            run_trial(launcher, tmp_path / "trial", spec, limits=Limits(trial_time_s=60, grace_s=1))
        return [json.loads(line) for line in (tmp_path / "trial" / "stdout.log").read_text().splitlines()[1:]]

    return run


def test_files_of_one_name_have_a_copy_each(printed, tmp_path):
    files = [
        ("train/config.json", {"deepspeed": "ds/config.json"}, "arguments", {"deepspeed": "{ds}"}),
        ("ds/config.json", {"stage": 1}, "ds", {"stage": "{micro_batch}"}),
        ("other/data.json", {"rate": 1}, "other", {"rate": 0.5}),
    ]
    assert printed(files) == [{"deepspeed": f"{tmp_path}/trial/ds/config.json"}, {"stage": 1}, {"rate": 0.5}]
    assert (tmp_path / "trial" / "data.json").exists(), "a name of one file alone stays in the trial's folder"
