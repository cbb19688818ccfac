"""The benchmark of this machine: its ranks answer, and none is left, even if we are killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from experiments.timings import allreduce_ranks
from experiments.timings.machine import REDUCTIONS, SIZES, all_reduces
from oppa.trials import processes
from tests.bench.remains import assert_gone, command_of


@pytest.mark.slow
def test_ranks_all_reduce_and_are_gone() -> None:
    before = processes.descendants(os.getpid())
    measured = all_reduces(2)
    assert [len(seconds) for seconds in measured] == [REDUCTIONS] * len(SIZES)
    assert all(second > 0 for seconds in measured for second in seconds)
    assert processes.descendants(os.getpid()) <= before


@pytest.mark.slow
def test_nothing_is_left_when_the_benchmark_is_killed() -> None:
    bench = subprocess.Popen([sys.executable, "-c", "from experiments.timings.machine import all_reduces; all_reduces(4)"])
    while not (ranks := [each for each in processes.descendants(bench.pid) if allreduce_ranks.__name__ in command_of(each.pid)]):
        time.sleep(0.05)
    bench.send_signal(signal.SIGKILL)
    bench.wait()
    assert_gone(ranks)
