"""`oppa doctor --measure`: figures become a hardware file whose predictions of the measured collectives are the measurements."""

import datetime
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from oppa.cost.hardware import load_hardware, read_hardware
from oppa.errors import EnvironmentLackingError, InputError
from oppa.launchers.measurement.derived import DerivedHardware, derive
from oppa.launchers.measurement.figures import HOST, NETWORK, Figure, HardwareMeasurement, joined
from oppa.launchers.measurement.hardware_text import hardware_text
from oppa.launchers.measurement.ranks import LaunchedRank, launched
from oppa.launchers.measurement.start import measure
from oppa.problem.cluster import HardwareFile
from tests.ending import ending
from tests.launchers.measurements import figure, measured

GB, US = 1e9, 1e-6
TORCHRUN = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "GROUP_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
SRUN = {
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "7",
    "MASTER_ADDR": "a",
}


def reduces(scope: str, ranks: int, *, small_s: float, bandwidth: float) -> list[Figure]:
    """A small and a large all-reduce; the large one takes the small one's time too."""
    work = 1e8
    large = figure("all-reduce", scope, ranks=ranks, work=work, seconds=small_s + work / bandwidth)
    return [figure("all-reduce", scope, ranks=ranks, seconds=small_s), large]


def eight(*figures: Figure, **how: int) -> DerivedHardware:
    within = reduces(HOST, 8, small_s=60 * US, bandwidth=370 * GB)
    return derive(measured(*within, *reduces(HOST, 2, small_s=44 * US, bandwidth=300 * GB), *figures, **how))


def test_small_all_reduces_of_two_sizes_tell_start_and_hops_apart() -> None:
    hardware = eight().hardware
    start_s, hop_s = hardware.coefficients["operation_s"].median, hardware.intra_host.latency_s
    assert start_s + 2 * hop_s == pytest.approx(44 * US) and start_s + 6 * hop_s == pytest.approx(60 * US)  # trees of three levels
    assert hardware.intra_host.bandwidth_bytes_per_s == pytest.approx(370 * GB)


def test_two_devices_keep_the_time_of_their_all_reduce() -> None:
    hardware = derive(measured(*reduces(HOST, 2, small_s=44 * US, bandwidth=300 * GB), devices=2)).hardware
    assert hardware.coefficients["operation_s"].median + 2 * hardware.intra_host.latency_s == pytest.approx(44 * US)


def test_one_device_has_the_links_of_the_catalogue() -> None:
    derived, known = derive(measured(devices=1)), load_hardware("H100")
    assert derived.known.name == "H100" and derived.measured == {"matmul", "memory"}
    assert (derived.hardware.intra_host, derived.hardware.inter_host) == (known.intra_host, known.inter_host)
    assert derived.hardware.matmul_flops_per_s == {"bf16": pytest.approx(7e14), "fp32": pytest.approx(5e13)}


@pytest.mark.parametrize(("alone", "ports"), [(50 * GB, 8), (400 * GB, 1), (100 * GB, 4)])
def test_a_transfer_alone_shows_how_many_ports_a_host_has(alone, ports) -> None:
    network = [*reduces(NETWORK, 2, small_s=100 * US, bandwidth=50 * GB), figure("send", NETWORK, ranks=2, work=alone, seconds=1.0)]
    hardware = eight(*network, hosts=2).hardware
    assert hardware.ports == ports and hardware.inter_host.bandwidth_bytes_per_s == pytest.approx(50 * GB)
    assert not hardware.stalls


def test_faster_transfers_to_some_devices_are_a_closer_link() -> None:
    sends = [figure("send", f"0-{other}", ranks=2, work=(200 if other == 1 else 20) * GB, seconds=1.0) for other in range(1, 8)]
    found = eight(*sends).hardware.pair
    assert found and (found.devices, found.bandwidth_bytes_per_s) == (2, pytest.approx(200 * GB))
    assert eight(*[figure("send", f"0-{other}", ranks=2, work=20 * GB, seconds=1.0) for other in range(1, 8)]).hardware.pair is None


@pytest.mark.parametrize(("device", "known"), [("NVIDIA H100 80GB HBM3", "H100"), ("CPU", "CPU"), ("a new chip", "GPU")])
def test_the_file_reads_as_the_figures_that_it_was_written_from(device, known) -> None:
    found = measured(*reduces(HOST, 2, small_s=44 * US, bandwidth=300 * GB), device=device, devices=2)
    derived = derive(found)
    text = hardware_text(found, derived, datetime.date(2026, 1, 2))
    read = read_hardware(HardwareFile(name="mine", text=text), on_cpu=device == "CPU")
    ours = derived.hardware
    assert derived.known.name == known and read.devices_per_host == 2 and read.matmul_flops_per_s == pytest.approx(ours.matmul_flops_per_s)
    assert read.intra_host.latency_s == pytest.approx(ours.intra_host.latency_s, rel=1e-3)
    assert {name: belief.median for name, belief in read.coefficients.items()} == pytest.approx(
        {name: belief.median for name, belief in ours.coefficients.items()}, rel=1e-3
    )
    assert "measured: oppa doctor --measure, 2026-01-02" in text and f"not measured: as {known}" in text


def test_devices_whose_fastest_products_differ_in_size_have_one_rate() -> None:
    rate, sizes = 7e14, (4.0, 1.0, 2.0)
    each = [figure("matmul", "bf16", work=size * 1e12, seconds=size * 1e12 / rate) for size in sizes]
    assert joined(each).median == pytest.approx(rate) and len(joined(each).seconds) == 9


def test_a_measurement_survives_json() -> None:
    found = measured(*reduces(HOST, 8, small_s=60 * US, bandwidth=370 * GB))
    assert HardwareMeasurement.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@pytest.mark.parametrize("environment", [TORCHRUN, SRUN])
def test_a_launched_process_finds_its_rank(environment) -> None:
    environment = dict(environment)
    assert launched(environment) == LaunchedRank(rank=9, world=16, local=1, host="1")
    assert environment["RANK"] == "9" and int(environment["MASTER_PORT"]) > 0  # for torch


@pytest.mark.parametrize(
    "environment", [{}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "16"}, {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}]
)
def test_a_process_alone_is_no_rank_of_a_launch(environment) -> None:
    assert launched(environment) is None


@pytest.mark.parametrize(("environment", "lacks"), [(TORCHRUN, "LOCAL_RANK"), (TORCHRUN, "MASTER_ADDR"), (SRUN, "SLURM_LOCALID")])
def test_incomplete_variables_of_a_launcher_are_named(environment, lacks) -> None:
    with pytest.raises(EnvironmentLackingError, match=lacks):
        launched({name: value for name, value in environment.items() if name != lacks})


def test_a_launcher_decides_the_number_of_ranks(monkeypatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="the launcher has started 16 ranks"):
        measure(ranks=2, figure_s=0.01, tell=print)


@pytest.mark.slow
def test_ranks_of_this_host_measure_themselves() -> None:
    steps: list[str] = []
    found = measure(ranks=2, figure_s=0.02, tell=steps.append)
    assert found and (found.device, found.hosts, found.devices_per_host) == ("CPU", 1, 2) and steps
    kinds = {(each.what, each.detail) for each in found.figures}
    assert kinds >= {("matmul", "fp32"), ("memory", ""), ("all-reduce", HOST), ("all-gather", HOST), ("send", "0-1")}
    assert all(len(each.seconds) == 5 and min(each.seconds) > 0 for each in found.figures)


@pytest.mark.slow
def test_ranks_of_srun_measure_between_hosts(slurm, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "oppa", "doctor", "--measure", "--figure-time", "20ms", "--out", str(tmp_path / "mine.toml"), "--json"]
    done = slurm.run("srun", "--nodes=2", "--ntasks-per-node=1", "env", "OMP_NUM_THREADS=1", *command, check=False)
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    assert (values["hosts"], values["devices_per_host"]) == (2, 1)
    assert {each["detail"] for each in values["figures"] if each["what"] == "all-reduce"} == {NETWORK}
    assert tuple(each["name"] for each in values["nodes"]) == slurm.nodes and values["slow_nodes"] == []
    assert load_hardware(str(tmp_path / "mine.toml")).inter_host.bandwidth_bytes_per_s > 0


@pytest.mark.slow
@pytest.mark.faults
def test_a_killed_measurement_leaves_no_process(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "oppa", "doctor", "--measure", "--ranks", "2", "--figure-time", "30s"]
    started = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "MARK": mark}, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    with ending(started) as doctor:
        assert doctor.stderr
        while b"matrix products" not in doctor.stderr.readline():
            assert doctor.poll() is None
        doctor.send_signal(signal.SIGKILL)
    give_up_at = time.monotonic() + 20
    while (left := marked(mark)) and time.monotonic() < give_up_at:
        time.sleep(0.1)
    assert left == []


def marked(mark: str) -> list[str]:
    """Processes with this mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            found += [path.parent.name] if mark.encode() in path.read_bytes() else []
        except OSError:
            continue
    return found
