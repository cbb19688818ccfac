"""Simulate the time and memory of a configuration, and a trial of it.

The simulator is independent of oppa's cost model, which gives a tuner its prior. Both share the model's dimensions and its weight counts.

The simulator omits failures other than out of memory, rails and switches of a network, and optimizers other than Adam. Collectives of one
kind share a link; those of different kinds do not compete for it. All devices are equal, so a straggler is random noise and not a
particular device.
"""

import math
from typing import Self

from oppa.errors import InputError
from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.problem.problem import Problem
from oppa.random_streams import stream
from oppa.simulator.degrees import SIMULATED_EXTRAS, context_parallel, replicas, shards
from oppa.simulator.framework import framework_of
from oppa.simulator.hardware import hardware_of
from oppa.simulator.kernels import Kernels
from oppa.simulator.memory import COMMUNICATOR_BYTES, CONTEXT_BYTES, FRAGMENTATION
from oppa.simulator.noise import noisy_steps
from oppa.simulator.step import StepSimulator
from oppa.simulator.topology import Topology
from oppa.simulator.trial_simulator import SimulatedTrial
from oppa.units import format_bytes

INITIALISED_BYTES_PER_S = 1.5e9
"""Bytes of fp32 weights that a host's processors draw or read per second. Assumed."""


class Simulator:
    """Simulates the trials of one job on one cluster."""

    def __init__(self, model: Model, cluster: Cluster, *, precision: str, framework: str, balanced: bool = False) -> None:
        """Raise InputError for a cluster, precision or framework that is not simulated.

        Args:
            framework: Name of its search space.
            balanced: Cut pipeline stages by cost; otherwise they hold equally many layers.
        """
        if model.not_built:
            raise InputError(f"no model with `{model.not_built}` is simulated", hint=f"leave out `{model.not_built}`")
        hardware = hardware_of(cluster)
        self.hardware, self.cluster, self.framework = hardware, cluster, framework_of(framework)
        self.limit_bytes = min(cluster.usable_bytes, hardware.device.memory_bytes)
        hardware.peak_flops_per_s(precision)
        topology = Topology(hardware, cluster.hosts)
        self.steps = StepSimulator(model, Kernels(hardware, precision), topology, self.framework, balanced=balanced)

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """Return the simulator of a problem; raises InputError as the constructor does, and for parameters that it does not simulate."""
        space = problem.space
        extras = [known for known in space.parameters if known.is_extra and not known.env and known.name not in SIMULATED_EXTRAS]
        if unknown := [known.name for known in extras if known.choices != (known.default,)]:
            names = ", ".join(f"`{name}`" for name in unknown)
            raise InputError(f"the simulator does not cover {names}", hint="leave out their choices, or name another runner")
        return cls(
            problem.model, problem.cluster, precision=problem.training.precision, framework=space.name, balanced=space.balanced_stages
        )

    def step_time_s(self, configuration: Configuration) -> float:
        """Return the seconds of a step without noise, whether the configuration fits or not."""
        return self.steps.seconds(configuration)

    def memory_bytes(self, configuration: Configuration) -> int:
        """Return the peak bytes allocated on the fullest device, as frameworks report it, whether the configuration fits or not."""
        return round(self.steps.memory_bytes(configuration))

    def fits(self, configuration: Configuration) -> bool:
        """Return whether the peak memory is within the limit.

        Fragmentation, the device's context and the communicators' buffers are added.
        """
        pc = configuration
        copies = replicas(pc) // shards(pc)
        communicators = sum(size > 1 for size in (pc.dp, pc.tp, pc.pp, pc.ep, context_parallel(pc), copies)) + 1
        outside = CONTEXT_BYTES + (communicators * COMMUNICATOR_BYTES if pc.devices > 1 else 0)
        return self.memory_bytes(configuration) * FRAGMENTATION + outside <= self.limit_bytes

    def steps_per_s(self, configuration: Configuration) -> float | None:
        """Return the true throughput in steps per second; None if the configuration does not fit."""
        return 1 / self.step_time_s(configuration) if self.fits(configuration) else None

    def simulate_trial(self, configuration: Configuration, *, steps: int, seed: int) -> SimulatedTrial:
        """Return a trial that runs for `steps` steps, or runs out of memory in its first."""
        setup_s = self._setup_s(configuration) * math.exp(0.1 * stream(seed, f"setup {configuration!r}").standard_normal())
        if not self.fits(configuration):
            return SimulatedTrial(outcome="out_of_memory", cause=self._shortage(configuration), setup_s=setup_s)
        times = noisy_steps(self.step_time_s(configuration), self.hardware.noise, configuration, steps=steps, seed=seed)
        return SimulatedTrial(
            outcome="completed", setup_s=setup_s, step_times_s=tuple(times.tolist()), memory_bytes=self.memory_bytes(configuration)
        )

    def _setup_s(self, configuration: Configuration) -> float:
        """Return the start-up seconds without noise.

        They cover imports and communicators, which take longer on more hosts, and the initial weights of one host's ranks.
        """
        model, pc = self.steps.model, configuration
        parts = min(self.hardware.devices_per_host, pc.devices)
        weights_s = 4 * model.parameter_count / (pc.tp * pc.pp) * parts / INITIALISED_BYTES_PER_S
        return self.framework.start_s * (1 + 0.2 * math.log2(self.cluster.hosts)) + weights_s

    def _shortage(self, configuration: Configuration) -> str:
        return f"{format_bytes(self.memory_bytes(configuration))} allocated of {format_bytes(self.limit_bytes)}"
