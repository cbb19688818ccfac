"""A request to stop, at any moment, gives a documented exit code, no traceback and no process, and the study can be resumed."""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

import oppa
from oppa.study import Study, database
from oppa.trials import processes
from tests.sampling import sampled

RUNNER = Path(__file__).parents[1] / "cli" / "runners" / "landscape"
JOB = f"""
model = {{preset = "tiny-1m"}}
batch = {{global_batch = 4}}
cluster = {{devices_per_host = 2, device = "CPU", memory_limit = "200 MiB"}}
runner = {{name = "{RUNNER}"}}
limits = {{trials = 3, trial_time = "30 s", q_min = 2, q_max = 8, repeats = 3, grace = "1 s", device_lock = false}}
"""
MOMENTS, SPAN_S = 60, 4.0
PACKAGE = Path(oppa.__file__).parent
BEFORE_HANDLING = {"__init__.py", "__main__.py"}
"""Modules of oppa that Python executes before oppa handles requests."""
MARK = "OPPA_TEST_INTERRUPTED"
"""Environment variable that every process of a run inherits, as trials take over the environment of their tuner."""

pytestmark = [pytest.mark.faults, pytest.mark.slow]


def stages(moment: int, number: signal.Signals) -> set[object]:
    """The default run sends each signal once, and one in each half: while the program loads, and in its trials."""
    return {number, ("half", moment // 30)}


def modules(printed: str) -> set[str]:
    """Return the modules of oppa in a traceback."""
    return set(re.findall(rf'File "{re.escape(str(PACKAGE))}/([^"]+)"', printed))


@pytest.mark.parametrize(
    ("moment", "number"),
    sampled([(moment, number) for moment in range(MOMENTS) for number in (signal.SIGINT, signal.SIGTERM)], stages),
)
def test_a_request_to_stop_is_followed_at_any_moment(moment: int, number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    mark = str(uuid.uuid4())
    command = [sys.executable, "-m", "oppa", "tune", "job.toml", "--designer", "random", "--study", "s"]
    tuner = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", MARK: mark},
        start_new_session=True,
    )
    time.sleep(SPAN_S * moment / MOMENTS)
    tuner.send_signal(number)
    _, printed = tuner.communicate(timeout=60)
    # Python itself may still start, until there is a study; its own traceback has no frame of oppa
    loading = () if (tmp_path / "s" / database.FILE).exists() else (-number, -signal.SIGINT, 1)
    assert tuner.returncode in (0, 130, *loading), printed
    assert not modules(printed) and "mistake" not in printed, printed
    assert not processes.tagged(lambda environment: environment.get(MARK) == mark)
    if (tmp_path / "s" / database.FILE).exists():
        with Study(tmp_path / "s") as study:
            assert {trial.outcome for trial in study.trials()} <= {"completed", "interrupted"} and not study.damaged()
            assert tuner.returncode == 0 or not study.running() or study.recover()
        again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert again.returncode == 0, again.stderr


def test_a_request_at_any_line_of_the_start_interrupts_no_import_of_oppa() -> None:
    """A trace function sends SIGINT at the n-th line of oppa."""
    program = f"""
import os, runpy, signal, sys

left, sys.argv = int(sys.argv[1]), ["oppa", "--version"]

def trace(frame, event, argument):
    global left
    if event == "line" and frame.f_code.co_filename.startswith({str(PACKAGE)!r}):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGINT)
    return trace

sys.settrace(trace)
runpy.run_module("oppa", run_name="__main__", alter_sys=True)
"""
    ended = [subprocess.run([sys.executable, "-c", program, str(line)], capture_output=True, text=True) for line in range(1, 91)]
    assert {each.returncode for each in ended} == {-signal.SIGINT, 130} and ended[-1].returncode == 130
    assert all(modules(each.stderr) <= BEFORE_HANDLING for each in ended)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_that_comes_as_python_ends_changes_no_exit_code(number: signal.Signals) -> None:
    program = f"""
import os, sys
from oppa.__main__ import main

class Late:
    def __del__(self, kill=os.kill, process=os.getpid()):
        kill(process, {int(number)})

sys.argv, late = ["oppa", "--version"], Late()
main()
"""
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, timeout=60).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_module_that_loads_is_loaded_before_a_request_is_followed(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(f"import os\nexec('os.kill(os.getpid(), {int(number)})')\nprint('loaded')\n")
    program = "from oppa import stop_request\nstop_request.follow()\nimport slow, time\ntime.sleep(10)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "loaded\n" and done.returncode == -signal.SIGINT and "KeyboardInterrupt" in done.stderr
