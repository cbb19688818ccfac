"""The suggested job fits the machine, and `load_job` accepts it as it is."""

from pathlib import Path

import pytest

from oppa.cost.hardware import hardware_of
from oppa.problem.detect import Machine, suggest_job, this_machine
from oppa.problem.job import load_job
from oppa.problem.problem import Problem

GIB = 2**30
MACHINES = {
    "laptop": Machine(cores=2, memory_bytes=8 * GIB),
    "small": Machine(cores=1.5, memory_bytes=GIB),
    "server": Machine(cores=64, memory_bytes=512 * GIB),
    "one H200": Machine(cores=16, memory_bytes=128 * GIB, gpus=1, gpu="H200", gpu_memory_bytes=140 * GIB),
    "eight A5000": Machine(cores=64, memory_bytes=512 * GIB, gpus=8, gpu="RTX A5000", gpu_memory_bytes=24 * GIB),
    "three small": Machine(cores=8, memory_bytes=64 * GIB, gpus=3, gpu="GTX 1060", gpu_memory_bytes=6 * GIB),
}


def loaded(machine: Machine | None, folder: Path) -> Problem:
    path = folder / "job.toml"
    path.write_text(suggest_job(machine))
    return load_job(path)


@pytest.mark.parametrize("name", MACHINES)
def test_the_suggestion_loads_and_uses_what_is_there(name: str, tmp_path: Path) -> None:
    machine = MACHINES[name]
    problem = loaded(machine, tmp_path)
    cluster = problem.cluster
    assert cluster.on_cuda == bool(machine.gpus)
    assert cluster.devices == machine.gpus or cluster.devices * (cluster.cpus_per_device or 0) == pytest.approx(machine.cores)
    assert cluster.devices * cluster.memory_limit_bytes <= machine.gpus * machine.gpu_memory_bytes + machine.memory_bytes // 2
    assert len(problem.candidates()) > 1


@pytest.mark.parametrize(
    ("gpu", "gigabytes", "device"),
    [
        ("H100 80GB HBM3", 85.0, "H100"),
        ("A100-SXM4-40GB", 42.3, "A100-40GB"),
        ("Tesla T4", 15.6, "T4"),
        ("L40S", 47.7, "L40S"),
        ("L40", 47.7, "L40"),
        ("A100-SXM4-40GB MIG 3g.20gb", 20.9, "A100-SXM4-40GB MIG 3g.20gb"),
    ],
)
def test_a_gpu_gets_its_catalogue_id_and_nine_tenths_of_its_memory(gpu: str, gigabytes: float, device: str, tmp_path: Path) -> None:
    size = round(gigabytes * 1e9)
    cluster = loaded(Machine(cores=64, memory_bytes=512 * GIB, gpus=4, gpu=gpu, gpu_memory_bytes=size), tmp_path).cluster
    assert cluster.device == device
    assert cluster.memory_limit_stated and 0.9 * size - 2**20 < cluster.usable_bytes <= 0.9 * size
    assert hardware_of(cluster).name == (device if len(device) < 10 and device != "L40" else "GPU")


def test_this_machine_gets_a_job(tmp_path: Path) -> None:
    assert loaded(None, tmp_path).name == "job"


def tree(root: Path, **files: str) -> Path:
    for name, text in {"proc/meminfo": "MemFree: 1 kB\nMemTotal:  8388608 kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_memory_is_the_physical_one_without_a_limit(tmp_path: Path) -> None:
    assert this_machine(tree(tmp_path, **{"sys/fs/cgroup/memory.max": "max\n"})).memory_bytes == 8 * GIB


@pytest.mark.parametrize("limit", ["sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"])
def test_memory_is_the_control_group_s_where_that_is_less(limit: str, tmp_path: Path) -> None:
    assert this_machine(tree(tmp_path, **{limit: f"{GIB}\n"})).memory_bytes == GIB


@pytest.mark.parametrize(
    "quota",
    [
        {"sys/fs/cgroup/cpu.max": "50000 100000\n"},
        {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
    ],
    ids=["v2", "v1"],
)
def test_cores_are_limited_by_the_control_group(quota: dict[str, str], tmp_path: Path) -> None:
    assert this_machine(tree(tmp_path, **quota)).cores == 0.5


def test_no_quota_leaves_all_cores(tmp_path: Path) -> None:
    unlimited = this_machine(tree(tmp_path / "a", **{"sys/fs/cgroup/cpu.max": "max 100000\n"})).cores
    none = this_machine(tree(tmp_path / "b", **{"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n"})).cores
    assert unlimited == none >= 1
