"""The simulator: how long a configuration would take, what it would need, and how a trial of it would go.

It knows nothing of oppa's cost model, by which a tuner believes; both know the model's dimensions and its counts of weights.

Not simulated: failures other than a lack of memory; collectives of different kinds that want one link at a time (those of one kind share
it); rails and switches of a network; optimizers other than Adam; devices that differ, so a straggler is noise and not a place.
"""

import math
from typing import Self

from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.problem.problem import Problem
from oppa.simulator.framework import framework_of
from oppa.simulator.hardware import hardware_of
from oppa.simulator.imitation import Imitation
from oppa.simulator.kernels import Kernels
from oppa.simulator.memory import COMMUNICATOR_BYTES, CONTEXT_BYTES, FRAGMENTATION
from oppa.simulator.noise import noisy_steps
from oppa.simulator.step import Steps
from oppa.simulator.topology import Topology
from oppa.streams import stream
from oppa.units import format_bytes

INITIALISED_BYTES_PER_S = 1.5e9
"""Of fp32 weights, drawn or read by a host's processors. Assumed."""


class Simulator:
    """Answers trials of one job on a simulated cluster (an `Imitator`)."""

    def __init__(self, model: Model, cluster: Cluster, *, precision: str, framework: str, balanced: bool = False) -> None:
        """Raises InputError for a device, precision or framework (by its search space) that is not simulated."""
        hardware = hardware_of(cluster)
        self.hardware, self.cluster, self.framework = hardware, cluster, framework_of(framework)
        self.limit_bytes = min(cluster.usable_bytes, hardware.device.memory_bytes)
        hardware.peak_flops_per_s(precision)
        topology = Topology(hardware, cluster.hosts)
        self.steps = Steps(model, Kernels(hardware, precision), topology, self.framework, balanced=balanced)

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """The simulator of a problem."""
        space = problem.space
        return cls(
            problem.model,
            problem.cluster,
            precision=problem.training.precision,
            framework=space.name,
            balanced=space.balanced_stages,
        )

    def step_time_s(self, configuration: Configuration) -> float:
        """Free of noise, whether it fits or not."""
        return self.steps.seconds(configuration)

    def memory_bytes(self, configuration: Configuration) -> int:
        """Allocated by the fullest device at its peak, as frameworks report it, whether it fits or not."""
        return round(self.steps.memory_bytes(configuration))

    def fits(self, configuration: Configuration) -> bool:
        """With what the allocator cannot use, the device's context and the communicators' buffers, it is within the limit."""
        pc = configuration
        communicators = sum(size > 1 for size in (pc.dp, pc.tp, pc.pp, pc.ep)) + 1
        outside = CONTEXT_BYTES + (communicators * COMMUNICATOR_BYTES if pc.devices > 1 else 0)
        return self.memory_bytes(configuration) * FRAGMENTATION + outside <= self.limit_bytes

    def steps_per_s(self, configuration: Configuration) -> float | None:
        """The true throughput; None where it does not fit."""
        return 1 / self.step_time_s(configuration) if self.fits(configuration) else None

    def imitate(self, configuration: Configuration, *, steps: int, seed: int) -> Imitation:
        """A trial: started, and run for so many steps unless memory is short in the first."""
        setup_s = self._setup_s(configuration) * math.exp(0.1 * stream(seed, f"setup {configuration!r}").standard_normal())
        if not self.fits(configuration):
            return Imitation(outcome="out_of_memory", cause=self._shortage(configuration), setup_s=setup_s)
        times = noisy_steps(self.step_time_s(configuration), self.hardware.noise, configuration, steps=steps, seed=seed)
        return Imitation(
            outcome="completed", setup_s=setup_s, step_times_s=tuple(times.tolist()), memory_bytes=self.memory_bytes(configuration)
        )

    def _setup_s(self, configuration: Configuration) -> float:
        """Imports and communicators, which take longer the more hosts there are, and the weights of a host's share of the model."""
        model, pc = self.steps.model, configuration
        parts = min(self.hardware.devices_per_host, pc.devices)
        weights_s = 4 * model.parameter_count / (pc.tp * pc.pp) * parts / INITIALISED_BYTES_PER_S
        return self.framework.start_s * (1 + 0.2 * math.log2(self.cluster.hosts)) + weights_s

    def _shortage(self, configuration: Configuration) -> str:
        return f"{format_bytes(self.memory_bytes(configuration))} allocated of {format_bytes(self.limit_bytes)}"
