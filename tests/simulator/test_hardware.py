"""Cluster files: all of them load, every table says where it is from, and what is wrong is named."""

import tomllib

import pytest

from oppa import catalog
from oppa.errors import InputError
from oppa.problem.cluster import Cluster
from oppa.simulator.hardware import hardware_of, load_hardware, read_hardware, simulated_devices

FOLDER = catalog.root() / "priors" / "clusters"


@pytest.mark.parametrize("device", simulated_devices())
def test_every_file_loads_and_has_its_sources(device):
    load_hardware(device)
    tables = tomllib.loads((FOLDER / f"{device}.toml").read_text())
    parts = [tables["device"], tables["host"], *tables["link"], tables["network"], tables["noise"]]
    assert all(len(part["source"]) >= len("assumed") for part in parts)


def test_the_clusters_of_the_papers_are_there():
    assert {"A5000", "RTX3080", "A100-40GB", "A100-80GB", "H100", "H100-PCIe", "MI210"} <= set(simulated_devices())


@pytest.mark.parametrize(
    ("device", "devices_per_host", "message", "hint"),
    [
        ("A500", 8, '`device = "A500"` is not simulated', "did you mean `A5000`?"),
        ("A100-40GB", 8, "devices_per_host = 8", "use `devices_per_host = 4`"),
    ],
)
def test_a_cluster_that_is_not_simulated_is_named(device, devices_per_host, message, hint):
    with pytest.raises(InputError) as caught:
        hardware_of(Cluster(device=device, devices_per_host=devices_per_host, memory_limit_bytes=1))
    assert message in caught.value.message and hint in caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("processors", "processor", "has no key `processor`"),
        ("devices = 4", "devices = 3", "`between the sockets` of 8 devices does not divide into groups of 3"),
        ("shared_by = 4", "shared_by = 8", "`between the sockets` of 8 devices does not divide into groups of 4"),
        ("devices_per_host = 8", "devices_per_host = 16", "its links join 8 of 16 devices"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(old, new, message):
    text = (FOLDER / "A5000.toml").read_text()
    assert old in text
    with pytest.raises(InputError) as caught:
        read_hardware(text.replace(f"\n{old}", f"\n{new}"), source="A5000.toml")
    assert message in caught.value.message


def test_a_precision_that_is_not_there_is_named():
    with pytest.raises(InputError, match="fp8"):
        load_hardware("A5000").peak_flops_per_s("fp8")
