"""How a user's own program fails is reported: its exception, its signal, or what its output lacks."""

import dataclasses

import pytest

from oppa.problem.command_table import formats
from tests.sampling import nightly
from tests.trials.conftest import COMMAND_LIMITS

ENDLESS = "import time\ntime.sleep(60)"
UNREAD = ("print('iter 1: 20 ms')", "no line matches `pattern = 'took (?P<ms>[0-9.]+) ms'`", "iter 1: 20 ms")
SILENT = ("", "the program printed nothing, and `pattern = ", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "cause", "lines", "end"),
    [
        *((*UNREAD, end) for end in ("", ENDLESS)),
        (*SILENT, ""),
        pytest.param(*SILENT, ENDLESS, marks=pytest.mark.nightly),
    ],
)
def test_a_program_whose_steps_cannot_be_read_is_reported(command_trial, program, cause, lines, end):
    limits = dataclasses.replace(COMMAND_LIMITS, trial_time_s=2.0) if end else COMMAND_LIMITS
    result = command_trial(f"{program}\n{end}", pattern="took (?P<ms>[0-9.]+) ms", limits=limits)
    assert result.outcome == ("timed_out" if end else "failed")
    assert result.cause.startswith("no step was seen") and cause in result.cause and ("within 2 s" in result.cause) == bool(end)
    assert result.traceback == lines


def test_a_program_that_never_reports_fails_with_the_reason(command_trial):
    cause = command_trial("print('done')").cause
    assert cause.startswith("no step was reported: the program never called `trial.step(...)`")
    assert f"no known format ({', '.join(formats())})" in cause


@pytest.mark.parametrize("pattern", [None, "took (?P<ms>[0-9.]+) ms"])
@pytest.mark.parametrize(
    ("program", "outcome", "cause"),
    [
        ("raise ValueError('3 layers')", "failed", "ValueError: 3 layers (the command exited with code 1 before its first step)"),
        ("import sys\nsys.exit('no data')", "failed", "no data (the command exited with code 1 before its first step)"),
        ("raise type('OutOfMemoryError', (RuntimeError,), {})('CUDA')", "out_of_memory", "OutOfMemoryError: CUDA"),
        ("raise RuntimeError('CUDA error: CUBLAS_STATUS_ALLOC_FAILED')", "out_of_memory", "CUBLAS_STATUS_ALLOC_FAILED"),
    ],
)
def test_a_crash_before_the_first_step_shows_its_exception(command_trial, program, outcome, cause, pattern):
    result = command_trial(program, pattern=pattern)
    assert result.outcome == outcome and cause in result.cause


@pytest.mark.parametrize(
    ("line", "end", "outcome"),
    [
        ("offloaded, so as not to run out of memory", "raise FileNotFoundError('train.parquet')", "failed"),
        ("offloaded, so as not to run out of memory", "sys.exit(1)", "out_of_memory"),
        ("(EngineCore pid=7) torch.OutOfMemoryError: CUDA out of memory.", "raise RuntimeError('no engine: see above')", "out_of_memory"),
        ("Cuda failure 2 'out of memory'", "raise RuntimeError('NCCL error in: NCCLUtils.hpp:317')", "out_of_memory"),
    ],
)
def test_a_remark_on_memory_does_not_hide_the_exception_that_ended_the_program(command_trial, line, end, outcome):
    assert command_trial(f"import sys\nprint({line!r}, flush=True)\n{end}").outcome == outcome


@pytest.mark.slow
@pytest.mark.parametrize("helper", ["time.sleep(60)", "[print('on', flush=True) or time.sleep(0.1) for _ in range(600)]"])
def test_a_program_has_ended_although_a_process_that_it_leaves_holds_its_output(command_trial, helper):
    """A loader or a writer of checkpoints outlives the rank that started it, which was killed."""
    program = f"""
        import os, subprocess, sys
        begun, begins = os.pipe()
        helper = "import os, sys, time; os.write(int(sys.argv[1]), b'.'); {helper}"
        subprocess.Popen([sys.executable, "-c", helper, str(begins)], pass_fds=[begins])
        os.read(begun, 1)
        print("last words", flush=True)
        os.kill(os.getpid(), 9)
    """
    result = command_trial(program, limits=dataclasses.replace(COMMAND_LIMITS, trial_time_s=30))
    assert result.outcome == "failed" and "killed by SIGKILL" in result.cause


def test_a_crash_after_some_steps_shows_its_exception(command_trial):
    result = command_trial("print('took 20.0 ms')\nraise ValueError('3 layers')", pattern="took (?P<ms>[0-9.]+) ms")
    assert (result.cause, result.steps) == ("ValueError: 3 layers (the command exited with code 1)", 1)
    assert result.traceback.endswith("ValueError: 3 layers")


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [None, *nightly("took (?P<ms>[0-9.]+) ms")])
def test_below_torchrun_the_rank_that_failed_first_is_named(command_trial, pattern):
    program = """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            raise ValueError("3 layers")
        dist.all_reduce(torch.ones(1))
    """
    result = command_trial(program, ranks=2, pattern=pattern)
    assert (result.outcome, result.rank) == ("failed", 1)
    assert result.cause == "ValueError: 3 layers (the command exited with code 1 before its first step)"
