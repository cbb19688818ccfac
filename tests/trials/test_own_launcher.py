"""A trial on a launcher of its own ends by a kill of the kernel for memory, or by a program that cannot be imported."""

import contextlib
import dataclasses
import os
import resource
from pathlib import Path

import pytest

from oppa.problem.training import Limits
from oppa.trials.cgroups import is_v2, own_group
from oppa.trials.local import LocalLauncher
from oppa.trials.trial import run_trial


@contextlib.contextmanager
def in_memory_group(limit_bytes):
    """Put this process, and all that it starts, into a group in which the kernel kills a process that uses more beyond the present."""
    home = own_group("memory")
    group = home / f"oppa-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.max" if is_v2(group) else "memory.limit_in_bytes")).write_text(str(limit_bytes + _resident_bytes()))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        pytest.skip(f"memory groups cannot be made here: {error}")
    try:
        yield
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def _resident_bytes():
    """Return what this process holds; some kernels bill it to the group."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.slow
def test_a_kill_by_the_kernel_for_want_of_memory_is_out_of_memory(script_runner, make_spec, tmp_path):
    spec = make_spec("steps 1 0.01\nallocate 8192 @ 1\nsleep 100")
    with in_memory_group(256 << 20), LocalLauncher(script_runner, study=spec.study, grace_s=1) as launcher:
        result = run_trial(launcher, tmp_path, spec, limits=Limits())
    assert (result.outcome, result.cause) == ("out_of_memory", "rank 1 was killed by SIGKILL when the host ran out of memory")


def test_an_import_that_fails_is_a_launch_failure(script_runner, make_spec, tmp_path):
    program = tmp_path / "broken.py"
    program.write_text("import no_such_module")
    with LocalLauncher(dataclasses.replace(script_runner, program=program), study="broken", grace_s=1) as launcher:
        result = run_trial(launcher, tmp_path / "trial", make_spec(), limits=Limits())
    assert result.cause == "launch failure: ModuleNotFoundError: No module named 'no_such_module'"
    assert Path(program).name in result.traceback
