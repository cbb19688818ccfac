"""The reason of a failure, found in what programs and their launchers write to stderr."""

import subprocess
import sys

import pytest

from oppa.trials.root_cause import root_cause

TRACEBACK = (
    'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n    raise ValueError("3 layers")\nValueError: 3 layers'
)
CHAINED = f"{TRACEBACK}\n\nThe above exception was the direct cause of the following exception:\n\n{TRACEBACK}".replace("3", "4")
LOST = TRACEBACK.replace("ValueError: 3 layers", "RuntimeError: pair.cc:553 Connection closed by peer")
TORCHRUN = """
W1124 02:18:22.829000 23902 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 23918 closing signal SIGTERM
E1124 02:18:22.893000 23902 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 23919)
Traceback (most recent call last):
  File "bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 23918)  (SIGTERM)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-24_02:18:22
  rank      : 1 (local_rank: 1)
  exitcode  : {} (pid: 23919)
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
ACCELERATE = TRACEBACK.replace(
    "ValueError: 3 layers", "subprocess.CalledProcessError: Command '['train.py']' returned non-zero exit status 1."
)


def by_rank(rank, text):
    return "\n".join(f"[rank{rank}]: {line}" for line in text.splitlines())


@pytest.mark.parametrize(
    ("stderr", "line", "rank"),
    [
        (TRACEBACK, "ValueError: 3 layers", None),
        (CHAINED.replace("ValueError: 4", "KeyError: 4", 1), "ValueError: 4 layers", None),
        (f"{TRACEBACK}\n{TRACEBACK}\n{TORCHRUN.format(1)}", "ValueError: 3 layers", 1),
        (f"{by_rank(0, LOST)}\n{by_rank(1, TRACEBACK)}\n{TORCHRUN.format(1)}", "ValueError: 3 layers", 1),
        (f"{by_rank(0, LOST)}\n{TORCHRUN.format(-9)}", "rank 1 was killed by SIGKILL", 1),
        (f"{by_rank(0, LOST)}\nno data in /data\n{TORCHRUN.format(1)}", "no data in /data", 1),
        (f"{TRACEBACK}\n{ACCELERATE}", "ValueError: 3 layers", None),
        (f"WARNING: slow\n{TRACEBACK.replace('ValueError: 3', 'ValueError:')}", "ValueError: layers", None),
        (f"\x1b[31m{TRACEBACK}\x1b[0m", "ValueError: 3 layers", None),
        ("usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --x", "train.py: error: unrecognized arguments: --x", None),
        ("a.py:3: UserWarning: old\n  warn()\n", None, None),
        ("", None, None),
    ],
)
def test_it_is_the_last_exception_of_the_rank_that_failed_first(stderr, line, rank):
    found = root_cause(stderr)
    assert (found and (found.line, found.rank)) == (line and (line, rank))


SURVIVOR = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 5, in <module>
[rank0]: RuntimeError: [pair.cc:537] Read error [127.0.0.1]:47023. Check the logs of the remote worker before reporting an error.
Failures:
[1]:
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 23919)  (SIGKILL)
------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 23918)
"""


def test_a_killed_rank_is_named_though_its_launcher_saw_a_survivor_fail_first():
    found = root_cause(SURVIVOR)
    assert (found.line, found.rank, found.signal) == ("rank 1 was killed by SIGKILL", 1, 9)


def test_a_survivor_that_is_killed_later_does_not_hide_the_exception():
    later = SURVIVOR.replace(
        "RuntimeError: [pair.cc:537] Read error [127.0.0.1]:47023. Check the logs of the remote worker", "ValueError: bad"
    )
    assert root_cause(later.replace("exitcode  : -9", "exitcode  : -6").replace("SIGKILL", "SIGABRT")).line.startswith("ValueError: bad")


def test_ranks_that_write_into_each_other_still_tell():
    lines = [each for pair in zip(TRACEBACK.splitlines(), TRACEBACK.splitlines(), strict=True) for each in pair]
    assert root_cause("\n".join(lines) + TORCHRUN.format(1)).line == "ValueError: 3 layers"


def test_the_traceback_of_that_exception_comes_along():
    found = root_cause(f"{by_rank(0, LOST)}\n{by_rank(1, TRACEBACK)}\n{TORCHRUN.format(1)}")
    assert found.traceback == TRACEBACK


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("def f(:", "SyntaxError: invalid syntax"),
        ("import no_such", "ModuleNotFoundError: No module named 'no_such'"),
        ("exit('gone')", "gone"),
    ],
)
def test_what_python_itself_writes_is_understood(program, line, tmp_path):
    (tmp_path / "program.py").write_text(program)
    ended = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True)
    assert root_cause(ended.stderr).line == line


@pytest.mark.slow
def test_what_torchrun_writes_is_understood(tmp_path):
    (tmp_path / "program.py").write_text(
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "if dist.get_rank() == 1: raise ValueError('3 layers')\ndist.all_reduce(torch.ones(1))\n"
    )
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(tmp_path / "program.py")]
    found = root_cause(subprocess.run(words, capture_output=True, text=True).stderr)
    assert (found.line, found.rank) == ("ValueError: 3 layers", 1)


def test_a_rank_that_ran_out_of_memory_is_the_cause_and_not_the_one_whose_watchdog_aborts() -> None:
    lacking = TRACEBACK.replace("ValueError: 3 layers", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    found = root_cause(f"{by_rank(3, lacking)}\n{TORCHRUN.format(-6)}")
    assert found is not None and (found.line.partition(":")[0], found.rank) == ("torch.OutOfMemoryError", 3)
