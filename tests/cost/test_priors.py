"""Every file in `priors/` reads, every number has a source, and what is wrong is named."""

import dataclasses
import tomllib
from pathlib import Path

import pytest

from oppa import catalog
from oppa.cost.coefficients import Belief, load_beliefs
from oppa.cost.hardware import CATALOG, LinkDomain, hardware_of, load_hardware
from oppa.errors import InputError
from oppa.problem.cluster import Cluster, HardwareFile, Link

BELIEF = 'median = 2.0\nspread = 0.1\nsource = "measured"\n'
DEVICE = """
devices_per_host = 8
memory = {bytes = 80e9, bandwidth_bytes_per_s = 2e12, source = "s"}
matmul_flops_per_s = {fp32 = 20e12, source = "s"}
intra_host = {bandwidth_bytes_per_s = 3e11, latency_s = 1e-6, source = "s"}
inter_host = {bandwidth_bytes_per_s = 25e9, latency_s = 1e-5, source = "s"}
coefficients = {overlap = {median = 0.5, spread = 0.2, source = "s"}}
"""
LINKS = """
pair = {devices = 2, bandwidth_bytes_per_s = 6e11, latency_s = 2e-6, source = "s"}
host_link = {bandwidth_bytes_per_s = 3e10, latency_s = 3e-6, source = "s"}
"""


def numbers_without_source(tables: dict[str, object], where: str = "") -> list[str]:
    """Tables that hold numbers and do not say where these are from."""
    inner = [found for name, table in tables.items() if isinstance(table, dict) for found in numbers_without_source(table, name)]
    holds = where and any(isinstance(value, int | float) for value in tables.values())
    return [*inner, *([where] if holds and not tables.get("source") else [])]


@pytest.mark.parametrize("path", sorted((catalog.root() / "priors").rglob("*.toml")), ids=lambda path: path.stem)
def test_every_number_has_a_source(path: Path) -> None:
    assert numbers_without_source(tomllib.loads(path.read_text())) == []


@pytest.mark.parametrize("name", ["step_time", "memory"])
def test_beliefs_read_and_their_median_lies_in_the_middle(name) -> None:
    for belief in load_beliefs(name).values():
        low, high = belief.interval
        assert low < belief.median < high and low * high == pytest.approx(belief.median**2)
        assert belief.what


@pytest.mark.parametrize("name", catalog.names(CATALOG))
def test_every_device_reads(name) -> None:
    device = load_hardware(name)
    assert device.name == name and device.matmul_peak("bf16") >= device.matmul_peak("fp32") / 2
    assert device.inter_host.bandwidth_bytes_per_s <= device.intra_host.bandwidth_bytes_per_s


@pytest.mark.parametrize("name", catalog.names(CATALOG))
def test_a_device_s_figures_are_in_order(name) -> None:
    device = load_hardware(name)
    sixteen, peaks = device.matmul_peak("fp16"), device.matmul_flops_per_s
    assert peaks.get("tf32", 0) <= sixteen <= peaks.get("fp8", sixteen) <= peaks.get("fp4", peaks.get("fp8", sixteen))
    assert device.pair is None or device.pair.bandwidth_bytes_per_s > device.intra_host.bandwidth_bytes_per_s
    assert device.host_link is None or device.host_link.bandwidth_bytes_per_s < device.memory_bandwidth_bytes_per_s
    assert device.link_devices % device.devices_per_host == 0


def test_a_prior_of_a_device_takes_precedence_over_the_general_one() -> None:
    better = Belief(median=0.9, spread=0.01, source="measured")
    beliefs = load_beliefs("step_time", {"overlap": better, "state": better})
    assert beliefs["overlap"].median == 0.9 and beliefs["overlap"].what
    assert "state" not in beliefs  # a coefficient of memory


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BELIEF.replace("2.0", "-2.0"), r", \[a\]: `median = -2.0` is too small"),
        (BELIEF.replace("0.1", "0"), r", \[a\]: `spread = 0` is too small"),
        (BELIEF.replace("2.0", "true"), r", \[a\]: `median = true` is not a number"),
        (BELIEF.replace("2.0", "nan"), r", \[a\]: `median = NaN` is not finite"),
        (BELIEF.replace("median", "mean"), r": `\[a\]` has no key `mean`"),
        (BELIEF.replace("spread = 0.1\n", ""), r": `\[a\]` lacks `spread`"),
        (BELIEF.replace('"measured"', '" "'), r", \[a\]: `source = \" \"` is empty"),
        (BELIEF.replace('source = "measured"', ""), r": `\[a\]` lacks `source`"),
    ],
)
def test_a_wrong_belief_is_named(text, message, write) -> None:
    with pytest.raises(InputError, match=rf"bad.toml`{message}"):
        load_beliefs(write(f"[a]\n{text}"))


@pytest.mark.parametrize(("text", "message"), [("a = 1", ": `a = 1` is not a table"), ("a = = 1", " is not TOML")])
def test_what_holds_no_beliefs_is_named(text, message, write) -> None:
    with pytest.raises(InputError, match=rf"bad.toml`{message}"):
        load_beliefs(write(text))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("memory = ", "memroy = ", " has no key `memroy`"),
        ("bytes = 80e9", "bytes = 0", r", \[memory\]: `bytes = 0` is too small"),
        ("latency_s = 1e-5", 'latency_s = "1"', r", \[inter_host\]: `latency_s = \"1\"` is not a number"),
        ('fp32 = 20e12, source = "s"', "fp32 = 20e12", r": `\[matmul_flops_per_s\]` lacks `source`"),
        ("fp32", "bf16", r": `\[matmul_flops_per_s\]` lacks `fp32`"),
        ("devices_per_host = 8", "", " lacks `devices_per_host`"),
        ("overlap", "overlpa", r": `\[coefficients\]` has no key `overlpa`"),
        ("fp32 = 20e12", "fp32 = 20e12, fp8 = 0", r", \[matmul_flops_per_s\]: `fp8 = 0` is too small"),
        ("fp32 = 20e12", "fp32 = 20e12, fp4 = -1.0", r", \[matmul_flops_per_s\]: `fp4 = -1.0` is too small"),
        ("fp32 = 20e12", "fp32 = 20e12, mxfp8 = 1e12", r": `\[matmul_flops_per_s\]` has no key `mxfp8`"),
        ("latency_s = 1e-6", "latency_s = 1e-6, devices = 0", r", \[intra_host\]: `devices = 0` is too small"),
        ("latency_s = 1e-6", "latency_s = 1e-6, devices = 4", r", \[intra_host\]: `devices = 4` is less than `devices_per_host = 8`"),
        ("devices = 2", "devices = 1", r", \[pair\]: `devices = 1` is too small"),
        ("devices = 2", "devices = 3", r", \[pair\]: `devices = 3` does not divide `devices_per_host = 8`"),
        ("devices = 2", "devices = 8", r", \[pair\]: `devices = 8` does not divide `devices_per_host = 8`"),
        ("bandwidth_bytes_per_s = 6e11", "bandwidth_bytes_per_s = 0", r", \[pair\]: `bandwidth_bytes_per_s = 0` is too small"),
        ("devices = 2, ", "", r": `\[pair\]` lacks `devices`"),
        ("latency_s = 3e-6", "latency_s = -1", r", \[host_link\]: `latency_s = -1` is too small"),
        ("latency_s = 3e-6", "latency = 3e-6", r": `\[host_link\]` has no key `latency`"),
        ('latency_s = 3e-6, source = "s"', "latency_s = 3e-6", r": `\[host_link\]` lacks `source`"),
        ("host_link", "hostlink", " has no key `hostlink`"),
    ],
)
def test_a_wrong_device_is_named(old, new, message, write) -> None:
    load_hardware(write(LINKS + DEVICE))
    with pytest.raises(InputError, match=f"bad.toml`({message})"):
        load_hardware(write((LINKS + DEVICE).replace(old, new, 1)))


def test_a_file_without_optional_links_has_none(write) -> None:
    found = load_hardware(write(DEVICE))
    assert (found.link_devices, found.pair, found.host_link) == (8, None, None)


def test_a_file_states_a_closer_a_wider_and_a_host_s_link(write) -> None:
    found = load_hardware(write(LINKS + DEVICE.replace("latency_s = 1e-6", "latency_s = 1e-6, devices = 72")))
    assert found.link_devices == 72
    assert found.pair == LinkDomain(devices=2, bandwidth_bytes_per_s=6e11, latency_s=2e-6)
    assert found.host_link == Link(bandwidth_bytes_per_s=3e10, latency_s=3e-6)


@pytest.mark.parametrize(
    ("precision", "peaks", "used"),
    [
        ("fp8", "bf16 = 1e12, fp8 = 2e12", 2e12),
        ("mxfp8", "bf16 = 1e12, fp8 = 2e12", 2e12),
        ("mxfp8", "fp16 = 1e12", 1e12),
        ("fp8", "bf16 = 1e12, fp16 = 3e12", 1e12),
        ("fp8", "tf32 = 1e12", 20e12),
        ("fp4", "fp8 = 2e12", 2e12),
        ("bf16", "fp8 = 2e12", 20e12),
    ],
)
def test_a_precision_without_a_peak_takes_the_next_that_has_one(precision, peaks, used, write) -> None:
    assert load_hardware(write(DEVICE.replace("fp32 = 20e12", f"fp32 = 20e12, {peaks}"))).matmul_peak(precision) == used


def test_an_unknown_precision_is_named(write) -> None:
    with pytest.raises(InputError, match="`precision = int4` is unknown"):
        load_hardware(write(DEVICE)).matmul_peak("int4")


def test_an_unknown_device_is_refused_by_name_and_assumed_to_be_some_gpu_in_a_cluster() -> None:
    with pytest.raises(InputError, match="`B400` is not one of the priors/hardware"):
        load_hardware("B400")
    stand_in = hardware_of(Cluster(devices_per_host=4, device="B400", memory_limit_bytes=10**9))
    assert (stand_in.name, stand_in.usable_bytes, stand_in.devices_per_host) == ("GPU", 10**9, 4)


def test_a_job_s_own_hardware_file_replaces_the_catalogue(write) -> None:
    file = HardwareFile(name="mycluster", text=LINKS + DEVICE)
    cluster = Cluster(devices_per_host=4, device="H100", memory_limit_bytes=10**9, hardware=file)
    found = hardware_of(cluster)
    assert (found.name, found.matmul_peak("bf16"), found.devices_per_host, found.usable_bytes) == ("mycluster", 20e12, 4, 10**9)
    assert found.asynchronous and not hardware_of(dataclasses.replace(cluster, device="CPU")).asynchronous
    with pytest.raises(InputError, match=r"`mycluster.toml`, \[memory\]: `bytes = 0` is too small"):
        hardware_of(dataclasses.replace(cluster, hardware=HardwareFile(name="mycluster", text=DEVICE.replace("80e9", "0"))))


def test_a_job_s_own_link_within_a_host_replaces_that_of_pairs() -> None:
    link = Link(bandwidth_bytes_per_s=1e9, latency_s=1e-3)
    cluster = Cluster(devices_per_host=4, device="H100-NVL", memory_limit_bytes=10**9)
    assert hardware_of(cluster).pair == load_hardware("H100-NVL").pair
    assert hardware_of(dataclasses.replace(cluster, intra_host=link)).pair is None


def test_a_link_that_spans_hosts_keeps_its_devices_whatever_the_hosts_have() -> None:
    racks, hosts = (Cluster(devices_per_host=2, device=name, memory_limit_bytes=10**9) for name in ("GB200", "H100"))
    assert (hardware_of(racks).link_devices, hardware_of(hosts).link_devices) == (72, 2)


@pytest.mark.parametrize(("device", "ports"), [("H100", 8), ("CPU", 1)])
def test_a_network_that_a_job_states_is_that_of_a_whole_host(device: str, ports: int) -> None:
    network = Link(bandwidth_bytes_per_s=400e9, latency_s=5e-6)
    found = hardware_of(Cluster(hosts=2, devices_per_host=8, device=device, memory_limit_bytes=10**9, inter_host=network))
    assert found.inter_host == Link(bandwidth_bytes_per_s=50e9, latency_s=5e-6) and min(found.ports, 8) == ports


def test_a_cluster_says_itself_what_its_links_and_cores_are() -> None:
    link = Link(bandwidth_bytes_per_s=1e9, latency_s=1e-3)
    cluster = Cluster(devices_per_host=4, device="CPU", memory_limit_bytes=10**9, cpus_per_device=0.5, intra_host=link)
    found, core = hardware_of(cluster), load_hardware("CPU")
    assert found.intra_host == link and found.inter_host == core.inter_host
    assert found.matmul_peak("fp32") == core.matmul_peak("fp32") / 2
