"""Provide jobs on simulated clusters, and change one thing about them."""

import dataclasses
from collections.abc import Callable

import pytest

from experiments.simulator import run as bench
from oppa import catalog
from oppa.catalog import data_folder
from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration
from oppa.problem.presets import PRESETS
from oppa.simulator.hardware import load_hardware
from oppa.simulator.kernels import Kernels
from oppa.simulator.operator_costs import OperatorCosts
from oppa.simulator.simulator import Simulator
from oppa.simulator.topology import Topology

JOBS = sorted((catalog.root() / "runners" / "simulated" / "jobs").glob("*.toml"))


@pytest.fixture
def make_simulator() -> Callable[..., Simulator]:
    """A simulator of Llama 3.2 1B, or of another preset."""

    def make(*, model="llama-3.2-1b", device="A100-40GB", hosts=2, framework="colossalai", **changes):
        hardware = load_hardware(device)
        cluster = Cluster(
            hosts=hosts, devices_per_host=hardware.devices_per_host, device=device, memory_limit_bytes=hardware.device.memory_bytes
        )
        return Simulator(dataclasses.replace(PRESETS[model], **changes), cluster, precision="bf16", framework=framework)

    return make


@pytest.fixture
def make_work() -> Callable[..., OperatorCosts]:
    """A micro-batch's work on one rank."""

    def make(*, model, framework, tp=1, ep=1, sequences=1, device="A100-80GB", precision="bf16"):
        hardware = load_hardware(device)
        return OperatorCosts(
            model=model,
            kernels=Kernels(hardware, precision),
            topology=Topology(hardware, hosts=1),
            framework=framework,
            tp=tp,
            ep=ep,
            sequences=sequences,
        )

    return make


def plan(**values) -> Configuration:
    """A configuration of a batch of 64 sequences."""
    return Configuration(**{"dp": 1, "global_batch": 64, "micro_batch": 1, **values})


@pytest.fixture(scope="session")
def published_runs() -> None:
    """Skip tests that need published measurements, with a message, if these are not there."""
    if lacking := [name for name in bench.FILES if not (data_folder() / name).is_file()]:
        pytest.skip(f"NOT TESTED against published measurements: `{data_folder()}` lacks {', '.join(lacking)} (set OPPA_DATA)")
