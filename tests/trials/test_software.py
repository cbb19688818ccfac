"""A trial runs on the programs that PATH finds, never silently on oppa's own, and a study keeps to one environment."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oppa import catalog
from oppa.errors import EnvironmentLackingError, StudyError
from oppa.problem.command import ConfigFile, LaunchCommand
from oppa.problem.job import load_job
from oppa.problem.problem import Problem
from oppa.problem.software import edited
from oppa.trials.line_files import digests
from oppa.trials.placement import environment
from oppa.trials.runner import find_program, load_runner
from oppa.trials.software import require_same, software_of
from oppa.trials.trial_folder import TrialSpec
from oppa.tuning.formats import export
from tests.trials.conftest import make_environment, script

LONG = "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"
JOB = '[model]\npreset = "tiny-4m"\n[batch]\nglobal_batch = 8\n[cluster]\ndevices_per_host = 4\nmemory_limit = "1 GiB"\n'


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> Path:
    return make_environment(tmp_path_factory.mktemp("mine") / "env", "2.7.1")


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    return make_environment(tmp_path_factory.mktemp("other") / "env", "2.8.0")


@pytest.fixture
def activated(monkeypatch):
    """Put folders before what every shell has."""

    def activate(*folders: Path) -> None:
        monkeypatch.setenv("PATH", os.pathsep.join([*map(str, folders), "/usr/bin", "/bin"]))

    return activate


def of(*words: str):
    return software_of(load_runner(catalog.find("runners", "command")), LaunchCommand(argv=words))


def test_a_launcher_is_the_one_that_path_finds_and_its_interpreter_is_asked(activated, mine) -> None:
    activated(mine)
    found = of("torchrun", "train.py", "{micro_batch}")
    assert (found.launcher, found.python, found.prefix, found.torch) == (f"{mine}/torchrun", f"{mine}/python", str(mine.parent), "2.7.1")
    assert found.python_version == ".".join(map(str, sys.version_info[:3]))


def test_oppas_own_programs_never_stand_in_for_one_that_path_does_not_find(activated, tmp_path) -> None:
    activated(tmp_path)
    own = Path(sys.executable).with_name("torchrun")
    with pytest.raises(EnvironmentLackingError, match="starts `torchrun`, which is not on PATH") as caught:
        of("torchrun", "train.py")
    assert "activate your environment" in caught.value.hint and f"`{own}`" in caught.value.hint
    with pytest.raises(EnvironmentLackingError, match="`no-such-program`, which is not installed"):
        find_program("no-such-program")


def test_no_trial_finds_oppas_own_programs_on_its_path(activated, tmp_path) -> None:
    activated(tmp_path)
    runner = load_runner(catalog.find("runners", "command"))
    assert environment(runner, "study", packages=tmp_path)["PATH"] == f"{tmp_path}:/usr/bin:/bin"


def test_what_path_finds_is_the_users_choice_also_where_it_is_oppas_own(activated) -> None:
    activated(Path(sys.executable).parent)
    assert of("torchrun", "train.py").prefix == sys.prefix


@pytest.mark.parametrize(
    "words",
    [("python", "train.py"), ("env", "A=1", "torchrun", "train.py"), ("long", "train.py"), ("named", "train.py")],
    ids=["interpreter", "wrapper", "pip's long first line", "env in the first line"],
)
def test_the_interpreter_of_a_launch_line_is_recognised(words, activated, mine, tmp_path) -> None:
    activated(mine, tmp_path)
    script(tmp_path / "long", LONG.format(python=mine / "python"))
    script(tmp_path / "named", "#!/usr/bin/env -S python -u\n")
    found = of(*words)
    assert found.torch == "2.7.1" and found.prefix == str(mine.parent)
    assert bool(found.path) is (words[0] == "named"), "PATH is kept where the program's first line leaves the interpreter to it"
    assert all(Path(path).is_absolute() for path in found.programs.values()) and set(found.programs) <= set(words)


def test_a_launch_line_that_shows_no_interpreter_keeps_its_path(activated, mine) -> None:
    activated(mine)
    found = of("sh", "train.sh")
    assert (
        not found.python
        and found.path == os.environ["PATH"]
        and dict(found.facts)["interpreter"] == "unknown, because the launch line does not show it"
    )


SHIM = """#!/bin/sh
export PYENV_DIR="$PWD" PYENV_VERSION PATH="{versions}/$PYENV_VERSION/bin:$PATH"
exec "{versions}/$PYENV_VERSION/bin/${{0##*/}}" "$@"
"""
"""It does what a shim of pyenv does."""


@pytest.fixture
def shims(activated, monkeypatch, tmp_path) -> Path:
    """Put shims of two versions of Python on PATH, and choose the first version."""
    versions = tmp_path / "versions"
    for version, torch in (("first", "2.7.1"), ("second", "2.8.0")):
        commands = make_environment(versions / version, torch)
        script(commands / "train", f"#!{commands}/python\nimport sys\nprint(sys.prefix)\n")
    (tmp_path / "shims").mkdir()
    for name in ("python", "torchrun", "train", "tool"):
        script(tmp_path / "shims" / name, SHIM.format(versions=versions))
    activated(tmp_path / "shims")
    monkeypatch.setenv("PYENV_VERSION", "first")
    return tmp_path / "shims"


@pytest.mark.parametrize("words", [("torchrun", "x.py"), ("python", "x.py"), ("train",), ("env", "A=1", "torchrun", "x.py")])
def test_of_a_shim_the_program_that_it_starts_is_recorded(words, shims) -> None:
    word = words[2] if words[0] == "env" else words[0]
    chosen = shims.with_name("versions") / "first" / "bin"
    found = of(*words)
    assert (found.programs[word], found.torch, found.prefix) == (f"{chosen}/{word}", "2.7.1", str(chosen.parent))
    assert found.path == f"{chosen}:{os.environ['PATH']}"


def test_a_study_on_shims_keeps_its_version_and_so_does_its_script(shims, monkeypatch, tmp_path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    asked = load_job(tmp_path / "job.toml", argv=["train", "{micro_batch}"])
    problem = dataclasses.replace(asked, software=of("train"))
    for name, text in export("torchrun", problem, problem.candidates().configuration(0)).items():
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PYENV_VERSION", "second")
    printed = subprocess.run(["sh", tmp_path / "run.sh"], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == str(shims.with_name("versions") / "first")
    with pytest.raises(StudyError, match=r"measured with environment .*first, but this environment has .*second"):
        require_same(tmp_path, problem, of("train"))


def test_a_wrapper_that_sets_variables_stays_as_its_program_would_lack_them(activated, mine, tmp_path) -> None:
    activated(tmp_path)
    script(tmp_path / "python", f'#!/bin/sh\nLD_PRELOAD= MALLOC_ARENA_MAX=1 exec "{mine}/python" "$@"\n')
    found = of("python", "train.py")
    assert (found.programs, found.prefix) == ({"python": f"{tmp_path}/python"}, str(mine.parent))


@pytest.mark.parametrize("word", ["sh", "tool"])
def test_a_program_that_is_no_python_stays_and_the_version_of_now_goes_first_on_its_path(word, shims) -> None:
    found = of(word, "train.sh")
    assert found.programs == {word: "/usr/bin/sh" if word == "sh" else f"{shims}/tool"} and not found.python
    assert found.path == f"{shims.with_name('versions')}/first/bin:{os.environ['PATH']}"


def test_an_interpreter_without_torch_is_fine_and_one_that_does_not_start_is_lacking(activated, tmp_path) -> None:
    plain = make_environment(tmp_path / "plain", "")
    activated(plain)
    assert of("torchrun", "x.py").torch == "" and of("torchrun", "x.py").interpreter.endswith("no torch")
    script(tmp_path / "stale", f"#!{tmp_path}/gone/bin/python\n")
    with pytest.raises(EnvironmentLackingError, match="gone/bin/python`, which does not start"):
        of(str(tmp_path / "stale"), "x.py")


def test_the_built_in_runner_runs_on_oppas_own_interpreter_and_a_simulated_one_on_none() -> None:
    found = software_of(load_runner(catalog.find("runners", "torch")), None)
    assert (found.python, found.prefix, found.launcher) == (sys.executable, sys.prefix, "") and found.torch
    assert software_of(load_runner(catalog.find("runners", "simulated")), None) is None


@pytest.fixture
def problem(activated, mine, tmp_path) -> Problem:
    activated(mine)
    (tmp_path / "job.toml").write_text(JOB)
    asked = load_job(tmp_path / "job.toml", argv=["torchrun", "train.py", "{micro_batch}", "torchrun"])
    return dataclasses.replace(asked, software=of(*asked.command.argv))


def test_software_survives_json_and_leaves_the_fingerprint(problem) -> None:
    assert Problem.from_dict(json.loads(json.dumps(problem.to_dict()))) == problem
    assert dataclasses.replace(problem, software=None).fingerprint == problem.fingerprint


def test_edits_of_the_files_that_a_launch_line_names_are_found(activated, mine, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    activated(mine)
    (tmp_path / "package").mkdir()
    for name in ("train.py", "ds.json", "package/loop.py", "run.yaml", "data.bin"):
        (tmp_path / name).write_text("1")
    words = ("torchrun", "-m", "package.loop", "train.py", "--deepspeed=ds.json", "data.bin", "missing.py", "{micro_batch}")
    line = LaunchCommand(argv=words, files=(ConfigFile(name="run", path="run.yaml", keys={}),))
    then = software_of(load_runner(catalog.find("runners", "command")), line)
    assert set(then.files) == {"package/loop.py", "train.py", "ds.json", "run.yaml"}
    assert not [*edited(then, dataclasses.replace(then, files=digests(line)))]
    (tmp_path / "train.py").write_text("2")
    (tmp_path / "run.yaml").unlink()
    now = dataclasses.replace(then, files=digests(line))
    assert [(name, here) for name, _, here in edited(then, now)] == [("`run.yaml`", "missing"), ("`train.py`", now.files["train.py"][:12])]
    assert not [*then.differences(now)], "a study goes on"
    assert not [*edited(dataclasses.replace(then, files={}), now)], "an older study recorded none"


def test_files_in_the_folder_of_env_are_found(tmp_path) -> None:
    (tmp_path / "train.py").write_text("1")
    assert set(digests(LaunchCommand(argv=("env", "-C", str(tmp_path), "python", "train.py")))) == {"train.py"}


def test_a_trial_starts_the_very_program_that_was_found(problem, mine) -> None:
    configuration = problem.candidates().configuration(0)
    spec = TrialSpec.of(problem, configuration, study="s", trial=1, steps=3)
    assert spec.command.argv == (f"{mine}/torchrun", "train.py", "{micro_batch}", "torchrun")
    assert problem.command.argv[0] == "torchrun"


def test_a_study_is_measured_on_one_environment(problem, activated, mine, other, tmp_path) -> None:
    require_same(tmp_path, problem, of(*problem.command.argv))
    require_same(tmp_path, problem, dataclasses.replace(problem.software, python=f"{mine}/python3"))  # the same, spelled otherwise
    activated(other)
    with pytest.raises(StudyError, match=r"was measured with environment .*mine.*, but this environment has .*other") as caught:
        require_same(tmp_path, problem, of(*problem.command.argv))
    assert "torch 2.7.1" in caught.value.hint


def test_another_torch_in_the_same_environment_is_refused(problem, tmp_path) -> None:
    now = dataclasses.replace(problem.software, torch="2.9.0")
    with pytest.raises(StudyError, match=r"measured with torch 2\.7\.1, but this environment has 2\.9\.0"):
        require_same(tmp_path, problem, now)


def test_a_study_of_an_oppa_that_recorded_nothing_goes_on(problem, tmp_path) -> None:
    require_same(tmp_path, dataclasses.replace(problem, software=None), problem.software)
