"""Who is where: the runner, the cost model and the simulator number ranks alike, and agree on which groups cross hosts."""

import dataclasses
import functools
import json
from pathlib import Path

import pytest
import torch

from oppa.cost.beliefs import prior_beliefs
from oppa.cost.collectives import CollectiveGroup
from oppa.cost.facts import format_facts, layout_of, machine_of
from oppa.cost.framework import load_framework
from oppa.cost.hardware import load_hardware as believed_hardware
from oppa.cost.layers import layer_time
from oppa.cost.model_facts import shape_facts
from oppa.cost.step_time import replica_time, step_time
from oppa.cost.workload import FormatFacts, ModelFacts, Workload
from oppa.launchers.emulation.netlab import Netlab, netlab_lacking
from oppa.launchers.emulation.pool import EmulatedHostPool
from oppa.launchers.hosts import HostsLauncher
from oppa.problem.allocation import NETLAB
from oppa.problem.cluster import Cluster, Link
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.problem.training import Limits, Training
from oppa.simulator.data_parallel import DataParallel
from oppa.simulator.framework import TORCH
from oppa.simulator.hardware import load_hardware as simulated_hardware
from oppa.simulator.kernels import Kernels
from oppa.simulator.operator_costs import OperatorCosts
from oppa.simulator.pipelines import Pipelines, PipelineSettings
from oppa.simulator.topology import Topology
from oppa.training.parallel.mesh import peers
from oppa.trials.runner import load_runner
from oppa.trials.trial import run_trial
from oppa.trials.trial_folder import TrialSpec
from tests.sampling import sampled

LACKING = "; ".join(netlab_lacking())
needs_hosts = pytest.mark.skipif(bool(LACKING), reason=f"NOT TESTED against real addresses: {LACKING}")

RUNNER = Path(__file__).parent / "runners" / "whereabouts"
MODEL = Model(layers=8, hidden=1024, heads=8, kv_heads=8, ffn=4096, vocab=512, seq_len=512, experts=8, experts_per_token=2)
AXES = ("tp", "ep", "dp", "expert_dp", "pp")
SIZES = ("dp", "tp", "pp", "ep")
ON_TWO_HOSTS = [
    *[(2, sizes) for sizes in [(4, 1, 1, 1), (1, 4, 1, 1), (1, 1, 4, 1), (2, 2, 1, 1), (2, 1, 2, 1), (1, 2, 2, 1)]],
    *[(2, sizes) for sizes in [(4, 1, 1, 2), (4, 1, 1, 4), (2, 2, 1, 2), (2, 1, 2, 2)]],
    *[(3, sizes) for sizes in [(2, 1, 3, 1), (1, 2, 3, 1), (3, 2, 1, 1), (2, 1, 3, 2)]],
    *[(4, sizes) for sizes in [(2, 2, 2, 1), (1, 4, 2, 1), (1, 2, 4, 1), (2, 1, 4, 1), (1, 8, 1, 1)]],
    *[(4, sizes) for sizes in [(8, 1, 1, 4), (4, 2, 1, 2), (4, 2, 1, 4), (2, 2, 2, 2)]],
]
"""Ranks of a host, and SIZES. Hosts of 3 are not filled with groups of 2: one in three of these is cut."""
CLUSTERS = [(hosts, per_host) for hosts in (1, 2, 3, 4, 5) for per_host in (1, 2, 3, 4, 6, 8)]


def configured(*sizes):
    return Configuration(**dict(zip(SIZES, sizes, strict=True)), global_batch=64, micro_batch=1)


def cluster_of(hosts, per_host):
    return Cluster(hosts=hosts, devices_per_host=per_host, memory_limit_bytes=1 << 30)


def layouts(devices):
    """Every way to divide so many devices."""
    for tp in divisors(devices):
        for dp in divisors(devices // tp):
            yield from (configured(dp, tp, devices // tp // dp, ep) for ep in divisors(dp))


def divisors(number):
    return [each for each in range(1, number + 1) if number % each == 0]


def groups(configuration):
    """The ranks of all groups, by axis, as the mesh makes them; neighbours of a data-parallel group share experts out."""
    found = {axis: set() for axis in AXES}
    for rank in range(configuration.devices):
        dp, tp, pp, *_ = peers(configuration, rank)
        index, ep = dp.index(rank), configuration.ep
        first = index // ep * ep
        for axis, ranks in zip(AXES, (tp, dp[first : first + ep], dp, dp[index % ep :: ep], pp), strict=True):
            found[axis].add(ranks)
    return found


def crossing(found, host_of):
    """The axes that have a group on several hosts."""
    return {axis for axis, each in found.items() if any(len({host_of[rank] for rank in ranks}) > 1 for ranks in each)}


def numbered(configuration, cluster):
    """Return the axes that cross hosts if ranks fill hosts in the order of their numbers."""
    return crossing(groups(configuration), [rank // cluster.devices_per_host for rank in range(configuration.devices)])


@functools.cache
def facts():
    """Return the cost model's facts about the model and the formats, once for all layouts."""
    formats = format_facts(load_framework("torch"), "bf16")
    shape = {name: torch.tensor([float(value)]) for name, value in shape_facts(MODEL).items()}
    return ModelFacts(**shape), FormatFacts(**{name: torch.tensor([float(value)]) for name, value in formats.items()})


@functools.cache
def machine_and_coefficients(per_host, slowed):
    known = believed_hardware("H100")
    network = dataclasses.replace(known.inter_host, bandwidth_bytes_per_s=known.inter_host.bandwidth_bytes_per_s / slowed)
    # with a device that works alone, nothing hides what a group needs
    hardware = dataclasses.replace(known, devices_per_host=per_host, link_devices=per_host, inter_host=network, asynchronous=False)
    return machine_of(hardware, "bf16", 1), prior_beliefs(hardware)


class CostModel:
    """Predicts by the cost model. It has no groups of an expert's replicas."""

    axes = ("tp", "ep", "dp", "pp")

    def __init__(self, configuration, cluster, *, slowed=1):
        names = (*SIZES, "model_chunks", "zero_stage", "micro_batch", "num_microbatches", "recompute")
        layout = layout_of({name: [getattr(configuration, name)] for name in names}, balanced=False)
        machine, self.coefficients = machine_and_coefficients(cluster.devices_per_host, slowed)
        shape, formats = facts()
        self.work = Workload(shape=shape, layout=layout, machine=machine, formats=formats)

    def crossing(self):
        layout, machine = self.work.layout, self.work.machine
        strides = {"tp": torch.ones(1), "ep": layout.tp, "dp": layout.tp}
        hosts = {
            axis: CollectiveGroup.of(getattr(layout, axis), stride, machine, self.work.devices).hosts for axis, stride in strides.items()
        }
        hosts["pp"] = torch.where(layout.pp > 1, self.work.hosts, 1)
        return {axis for axis in self.axes if hosts[axis] > 1}

    def seconds(self):
        """Return the seconds of a layout, by the axes that communicate meanwhile."""
        work, c = self.work, self.coefficients
        return {("tp", "ep"): layer_time(work, c), ("dp",): replica_time(work, torch.zeros(1), c), self.axes: step_time(work, c)}


class Simulated:
    """Predicts by the simulator."""

    axes = AXES

    def __init__(self, configuration, cluster, *, slowed=1):
        known, inside = simulated_hardware("H100"), cluster.devices_per_host
        self.network = known.network.model_copy(update={"bandwidth_bytes_per_s": known.network.bandwidth_bytes_per_s / slowed})
        link = () if inside == 1 else (known.link[0].model_copy(update={"devices": inside}),)
        hardware = known.model_copy(update={"devices_per_host": inside, "link": link, "network": self.network})
        self.configuration, self.kernels, self.topology = configuration, Kernels(hardware, "bf16"), Topology(hardware, cluster.hosts)
        self.replicas = DataParallel(configuration=configuration, topology=self.topology, kernels=self.kernels, framework=TORCH)

    def crossing(self):
        pc, replicas = self.configuration, self.replicas
        met = {"tp": self.topology.group(pc.tp, 1), "ep": self.topology.group(pc.ep, pc.tp)}
        met |= {"dp": replicas.group, "expert_dp": replicas.expert_group}
        links = {axis: {each.link for each in group.crossings} for axis, group in met.items()}
        links["pp"] = {self._hop(stage) for stage in range(pc.pp - 1)}
        return {axis for axis in AXES if self.network.name in links[axis]}

    def seconds(self):
        """Return the seconds of a layout, by the axes that communicate meanwhile."""
        pc, replicas, nothing = self.configuration, self.replicas, {"layers": 1, "window_s": 0.0}
        parts = {"kernels": self.kernels, "topology": self.topology, "framework": TORCH}
        pipelines = Pipelines(MODEL, **parts, balanced=False)
        return {
            ("tp", "ep"): OperatorCosts(model=MODEL, **parts, tp=pc.tp, ep=pc.ep, sequences=1).layer("none").forward.device_s,
            ("dp",): replicas.gradients_s(dense=1e9, experts=0, **nothing),
            ("expert_dp",): replicas.gradients_s(dense=0, experts=1e9, **nothing),
            ("tp", "ep", "pp"): max(pipelines.execution(PipelineSettings.of(pc, TORCH)).finish_s),
        }

    def _hop(self, stage):
        """The link from a stage of the pipeline to the next."""
        ranks = self.configuration.dp * self.configuration.tp
        return self.topology.hop(stage * ranks, (stage + 1) * ranks, senders=ranks).link


MODELS = pytest.mark.parametrize("model", [CostModel, Simulated])
IDS = [f"{per_host}-{configured(*sizes).id}" for per_host, sizes in ON_TWO_HOSTS]
LAYOUTS = pytest.mark.parametrize(("per_host", "sizes"), ON_TWO_HOSTS, ids=IDS)


@MODELS
@pytest.mark.parametrize(("hosts", "per_host"), CLUSTERS)
def test_they_agree_on_what_crosses_hosts(model, hosts, per_host):
    cluster = cluster_of(hosts, per_host)
    found = {each.id: model(each, cluster).crossing() ^ (numbered(each, cluster) & {*model.axes}) for each in layouts(cluster.devices)}
    assert {id: axes for id, axes in found.items() if axes} == {}


@MODELS
@LAYOUTS
def test_a_slower_network_slows_what_crosses_hosts_alone(model, per_host, sizes):
    configuration, cluster = configured(*sizes), cluster_of(2, per_host)
    crosses = numbered(configuration, cluster)
    slow = model(configuration, cluster, slowed=1e6).seconds()
    for axes, seconds in model(configuration, cluster).seconds().items():
        assert (slow[axes] > 1.01 * seconds) == bool(crosses & {*axes}), axes


@pytest.fixture(scope="module")
def whereabouts(tmp_path_factory):
    """Return each rank's address on two hosts under a configuration, and those of the ranks that it reached."""
    with Netlab(2, Link(bandwidth_bytes_per_s=125e6, latency_s=1e-4)) as lab, pytest.MonkeyPatch.context() as patch:
        hosts = [{"address": host.address, "namespace": str(host.namespace)} for host in lab.hosts]
        patch.setenv(NETLAB, json.dumps({"hosts": hosts, "ranks_per_host": 4}))
        place = EmulatedHostPool.of(cluster_of(2, 4))
        with HostsLauncher(load_runner(RUNNER), place, study="whereabouts", grace_s=1) as launcher:

            def ask(configuration, cluster):
                folder = tmp_path_factory.mktemp("trial")
                rest = {"study": "whereabouts", "trial": 0, "stated_model": MODEL, "training": Training(), "steps": 1}
                spec = TrialSpec(configuration=configuration, cluster=cluster, **rest)
                result = run_trial(launcher, folder, spec, limits=Limits(trial_time_s=60, grace_s=1))
                assert result.outcome == "completed", result
                return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(configuration.devices)]

            yield ask


def sizes_and_places(per_host, sizes):
    """Return the axes, on how many ranks of a host they are, and if two of them are together."""
    return {(per_host, axis) for axis, size in zip(SIZES, sizes, strict=True) if size > 1} | {tuple(size > 1 for size in sizes)}


@needs_hosts
@pytest.mark.slow
@pytest.mark.parametrize(
    ("per_host", "sizes"),
    sampled(ON_TWO_HOSTS, sizes_and_places),
    ids=[f"{per_host}-{configured(*sizes).id}" for per_host, sizes in ON_TWO_HOSTS],
)
def test_they_agree_with_the_addresses_that_ranks_really_have(whereabouts, per_host, sizes):
    configuration, cluster = configured(*sizes), cluster_of(2, per_host)
    reports = whereabouts(configuration, cluster)
    addresses = [rank["address"] for rank in reports]
    assert addresses == ["10.77.0.1"] * per_host + ["10.77.0.2"] * per_host
    met = {axis: {tuple(peer for peer, _ in rank[axis]) for rank in reports} for axis in AXES}
    assert met == groups(configuration)
    assert all(address == addresses[peer] for rank in reports for axis in AXES for peer, address in rank[axis])
    crosses = crossing(met, addresses)
    assert Simulated(configuration, cluster).crossing() == crosses
    assert CostModel(configuration, cluster).crossing() == crosses - {"expert_dp"}
