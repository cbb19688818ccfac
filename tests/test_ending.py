"""A test that fails waits for nothing that it has started."""

import multiprocessing
import signal
import subprocess
import sys
import time

import pytest

from tests.ending import at_once, end, ending, join

STUBBORN = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(flush=True)\ntime.sleep(100)"


def test_a_process_ends_with_a_block_that_fails() -> None:
    with pytest.raises(ValueError), ending(subprocess.Popen(["sleep", "100"])) as process:
        raise ValueError
    assert process.returncode == -signal.SIGKILL


def test_a_process_that_ignores_signals_is_killed() -> None:
    with ending(subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)) as process:
        process.stdout.readline()
        process.terminate()
        end(process, grace_s=0.1)
        assert process.returncode == -signal.SIGKILL


def test_a_fork_that_hangs_is_killed() -> None:
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(100,), daemon=True)
    process.start()
    join(process, grace_s=0.1)
    assert process.exitcode == -signal.SIGKILL


def test_work_at_once_has_results_in_order_and_a_limit() -> None:
    assert at_once(lambda number: 2 * number, [1, 2]) == [2, 4]
    with pytest.raises(ZeroDivisionError):
        at_once(lambda number: 1 // number, [1, 0])
    with pytest.raises(TimeoutError):
        at_once(time.sleep, [0, 100], limit_s=0.1)
