"""A runner's own environment is declared, made once, and distinguished from a half-made one."""

import subprocess
import zipfile

import pytest

from oppa.errors import EnvironmentLackingError, InputError
from oppa.trials import environments
from oppa.trials.runner import load_runner

pytestmark = pytest.mark.slow  # an interpreter with pip takes seconds


@pytest.fixture
def wheel(tmp_path):
    """A package `hello 1.0`, without an index."""
    path = tmp_path / "hello-1.0-py3-none-any.whl"
    facts = "hello-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("hello.py", "GREETING = 'hello'\n")
        file.writestr(f"{facts}/METADATA", "Metadata-Version: 2.1\nName: hello\nVersion: 1.0\n")
        file.writestr(f"{facts}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{facts}/RECORD", f"hello.py,,\n{facts}/METADATA,,\n{facts}/WHEEL,,\n{facts}/RECORD,,\n")
    return path


@pytest.fixture
def declare(tmp_path, wheel, monkeypatch):
    """A runner that wants the package."""
    monkeypatch.setenv("OPPA_ENVIRONMENTS", str(tmp_path / "environments"))
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.py").write_text("")
    (folder / "runner.toml").write_text('program = "train.py"')

    def write(imports="hello", package=wheel, more=""):
        step = f'[[step]]\npackages = ["{package}"]\noptions = ["--no-index"]\n'
        (folder / environments.DECLARATION).write_text(f'imports = ["{imports}"]\n{more}\n{step}')
        return environments.environment(folder)

    return write


def create(wanted):
    lines = []
    environments.create(wanted, lines.append)
    return lines


def test_a_runner_whose_environment_is_not_made_names_the_command(declare):
    wanted = declare()
    with pytest.raises(EnvironmentLackingError, match="the runner `mine` does not exist") as error:
        load_runner(wanted.runner)
    assert f"oppa env create {wanted.runner}" in error.value.hint


def test_a_step_that_fails_leaves_it_incomplete_and_once_made_anew_it_runs_the_runner(declare, wheel, tmp_path):
    """One environment shows all of its life, as each takes seconds."""
    wanted = declare()
    content = wheel.read_bytes()
    wheel.unlink()
    with pytest.raises(EnvironmentLackingError, match=r"installing .*hello.* failed with exit code 1") as error:
        create(wanted)
    assert wanted.state == "incomplete" and environments.LOG in error.value.hint
    with pytest.raises(EnvironmentLackingError, match="is incomplete"):
        load_runner(wanted.runner)
    wheel.write_bytes(content)
    assert any("hello-1.0" in line for line in create(wanted))
    assert wanted.state == "ready" and wanted.packages["hello"] == "1.0"
    require_started(wanted, tmp_path)
    assert create(wanted) == []  # nothing is done twice
    assert declare(more="# a comment").path == wanted.path
    second = declare(more='warm_up = "train.py"')
    assert (wanted.path != second.path, second.state, second.earlier) == (True, "missing", [wanted.path])
    assert environments.remove(second) == [wanted.path] and wanted.state == "missing"


def require_started(wanted, folder):
    """Check that the runner starts in its environment, and finds oppa there."""
    runner = load_runner(wanted.runner)
    assert runner.isolated and runner.argv(nproc=1, folder=folder)[0] == str(wanted.python)
    command = [str(wanted.python), "-P", "-c", "import hello, oppa.errors; print(hello.GREETING)"]
    started = environments.variables(wanted.python, folder / "packages")
    assert subprocess.run(command, env=started, capture_output=True, text=True, check=True).stdout == "hello\n"


def test_what_cannot_be_imported_is_not_made(declare):
    wanted = declare(imports="goodbye")
    with pytest.raises(EnvironmentLackingError, match="No module named 'goodbye'"):
        create(wanted)
    assert wanted.state == "incomplete"


@pytest.mark.parametrize(
    ("more", "message"), [('warm_up = "warm.py"', '`warm.py`|`warm_up = "warm.py"` does not exist'), ("import = 3", "unknown key|import")]
)
def test_a_wrong_declaration_is_reported_before_anything_is_made(declare, more, message):
    wanted = declare(more=more)
    with pytest.raises(InputError, match=message):
        create(wanted)
    assert wanted.state == "missing"
