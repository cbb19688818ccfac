"""A runner is read from its folder, and what is wrong with it is said."""

import sys

import pytest

from oppa import catalog
from oppa.errors import EnvironmentLackingError, InputError
from oppa.trials import environments
from oppa.trials.runner import load_runner


@pytest.fixture
def load(tmp_path):
    (tmp_path / "train.py").write_text("")

    def write_and_load(manifest):
        (tmp_path / "runner.toml").write_text(manifest)
        return load_runner(tmp_path)

    return write_and_load


@pytest.mark.parametrize("name", catalog.names("runners"))
def test_every_runner_of_the_catalog_loads_or_names_the_command_that_makes_its_environment(name):
    folder = catalog.find("runners", name)
    own = environments.environment(folder)
    if own is None or own.state == "ready":
        assert load_runner(folder).name == name
    else:
        with pytest.raises(EnvironmentLackingError) as error:
            load_runner(folder)
        assert f"`oppa env create {name}`" in error.value.hint


def test_a_program_is_started_once_per_rank(load, tmp_path):
    runner = load('program = "train.py"')
    assert runner.argv(nproc=4, folder=tmp_path) == [sys.executable, "-P", str(tmp_path / "train.py")]
    assert runner.name == tmp_path.name


def test_a_command_is_filled_in(load, tmp_path):
    runner = load('program = "train.py"\ncommand = ["{python}", "-m", "torch.distributed.run", "--nproc-per-node={nproc}", "{program}"]')
    expected = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4", str(tmp_path / "train.py")]
    assert runner.argv(nproc=4, folder=tmp_path) == expected


def test_a_runner_in_process_starts_nothing(load):
    runner = load('in_process = true\nsearch_space = "torch"')
    assert runner.in_process and runner.program is None and not runner.command


@pytest.mark.parametrize(
    ("manifest", "message", "hint"),
    [
        ('programm = "train.py"', "/runner.toml` has no key `programm`", "did you mean `program`?"),
        ('program = "trian.py"', '`program = "trian.py"` does not exist', "trian.py"),
        ("program = 3", "/runner.toml`: `program = 3` is not a string", "in quotes"),
        ('program = "train.py"\ngrace_s = true', "`grace_s = true` is not a number", "without quotes"),
        ('program = "train.py"\ngrace_s = -1', "`grace_s = -1` is too small", "at least 0"),
        ('program = "train.py"\nenvironment = {A = 1}', ", [environment]: `A = 1` is not a string", "in quotes"),
        ('program = "train.py"\ncommand = "{python}"', '`command = "{python}"` is not a list', "in brackets"),
        ('program = "train.py"\nparameters = ["dp", "micro_bach"]', "unknown parameter `micro_bach`", "did you mean"),
        ('name = "nothing"', "neither `program` nor `command`", "program"),
        ('command = ["{python}"]\nwarm = true', "`warm = true` needs a `program`", ""),
        ('in_process = true\nprogram = "train.py"', "so `program` has no effect", "remove one"),
        ('in_process = true\ncommand = ["{python}"]', "so `command` has no effect", "remove one"),
        ("in_process = 1", "`in_process = 1` is not true or false", "without quotes"),
        ('command = ["{python}", "{ranks}"]', "unknown placeholder: 'ranks'", "{nproc}"),
        ('command = ["{python}", "{program}"]', "`{program}` needs a `program`", "program"),
        ("name = ", "/runner.toml` is not TOML", "check `name =`"),
    ],
)
def test_wrong_input_is_named(load, manifest, message, hint):
    with pytest.raises(InputError) as caught:
        load(manifest)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_folder_without_a_manifest_is_no_runner(tmp_path):
    with pytest.raises(InputError, match="is not a runner"):
        load_runner(tmp_path)


@pytest.mark.parametrize("manifest", ['program = "train.py"\nrequires = ["no_such_module"]', 'command = ["no-such-command"]'])
def test_what_is_not_installed_is_lacking(load, manifest):
    with pytest.raises(EnvironmentLackingError, match="not installed"):
        load(manifest)
