"""A host that lacks what a job needs is reported before the study starts, and a broken part is found early."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oppa.errors import EnvironmentLackingError
from oppa.problem.cluster import Cluster
from oppa.problem.detect import Machine, this_machine
from oppa.trials.host import Check, checks, device_check, require_devices
from oppa.units import format_bytes

ROOT = Path(__file__).parents[2]
without_gpus = pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this host has CUDA devices")


def cluster(**values):
    return Cluster(**{"devices_per_host": 4, "memory_limit_bytes": 1 << 30, **values})


def test_any_number_of_ranks_runs_on_cpus():
    require_devices(cluster(devices_per_host=64))


@pytest.mark.parametrize(
    ("values", "message", "hint"),
    [
        ({"hosts": 3}, "the launcher `local` runs on one host, but this job has 3", "`hosts = 1`"),
        pytest.param(
            {"device": "H100"}, "needs 4 x `H100`, but the number of CUDA devices on this host is 0", '`device = "CPU"`', marks=without_gpus
        ),
    ],
)
def test_devices_that_are_not_here_are_lacking(values, message, hint):
    with pytest.raises(EnvironmentLackingError) as caught:
        require_devices(cluster(**values))
    assert message in caught.value.message
    assert hint in caught.value.hint


def python(program, path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run([sys.executable, "-P", "-c", program], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[0]


def test_a_job_on_cpus_needs_no_torch_to_be_checked():
    program = "import sys; from oppa.problem.cluster import Cluster; from oppa.trials.host import require_devices\n"
    program += "require_devices(Cluster(devices_per_host=4, memory_limit_bytes=1 << 30)); print('torch' in sys.modules)"
    assert python(program, [ROOT]) == "False"


@pytest.mark.parametrize("error", ["ImportError", "OSError"])
def test_a_torch_that_cannot_be_imported_is_a_failed_check(error, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f"raise {error}('libgomp.so.1: cannot open shared object file')")
    program = "from oppa.trials.host import checks; print(*(f'{c.name}: {c.found}' for c in checks() if c.needed and not c.works))"
    assert python(program, [tmp_path, ROOT]) == "torch: cannot be imported: libgomp.so.1: cannot open shared object file"


def test_a_gpu_that_the_hardware_prior_does_not_cover_is_found():
    machine = Machine(cores=8, memory_bytes=1 << 36, gpus=1, gpu="H100 80GB HBM3", gpu_memory_bytes=85 * 10**9)
    assert device_check(machine) == Check(name="device catalogue", works=True, found="H100")
    unknown = device_check(dataclasses.replace(machine, gpu="H200 NVL"))
    assert not unknown.works and unknown.found == "`H200 NVL` is unknown" and "factor of three" in unknown.hint


@pytest.mark.slow
def test_memory_is_what_this_process_may_use():
    (memory,) = (check.found for check in checks() if check.name == "memory")
    assert memory == format_bytes(this_machine().memory_bytes)
