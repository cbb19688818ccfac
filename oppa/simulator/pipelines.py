"""Simulate the pipeline of a layout: seconds of each stage and transfer, when each rank finishes, and its peak activations."""

import dataclasses
import functools

from oppa.pipeline import stage_layout
from oppa.pipeline.execution import Execution, Times, execute
from oppa.pipeline.graph import Schedule
from oppa.pipeline.memory import Footprint, peak_memory
from oppa.pipeline.registry import build_schedule
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.simulator.collectives import all_gather_s, reduce_scatter_s, send_s
from oppa.simulator.degrees import context_parallel, shards
from oppa.simulator.framework import Framework
from oppa.simulator.kernels import Kernels
from oppa.simulator.memory import Activations
from oppa.simulator.operator_costs import Cost, OperatorCosts, Passes
from oppa.simulator.stages import StageCosts, cut, of_parts
from oppa.simulator.topology import Topology


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """Holds the settings that determine a pipeline: those of a configuration, without those of data-parallel communication."""

    tp: int
    dp: int
    pp: int
    ep: int
    cp: int
    shards: int
    """Ranks over which ZeRO shards weights."""
    micro_batch: int
    num_microbatches: int
    chunks: int
    schedule: str
    recompute: str
    stage_layout: str
    sender_waits: bool
    gathered: bool
    """The weights are gathered for every pass (ZeRO 3)."""

    @classmethod
    def of(cls, configuration: Configuration, framework: Framework) -> "PipelineSettings":
        """Return the layout of a configuration."""
        pc = configuration
        waits = framework.waiting_transfers
        return cls(
            tp=pc.tp,
            dp=pc.dp,
            pp=pc.pp,
            ep=pc.ep,
            cp=context_parallel(pc),
            shards=shards(pc),
            micro_batch=pc.micro_batch,
            num_microbatches=pc.num_microbatches,
            chunks=pc.model_chunks if pc.pp > 1 else 1,
            schedule=pc.schedule if pc.pp > 1 else "1f1b",
            recompute=pc.recompute,
            stage_layout=pc.stage_layout,
            sender_waits=waits if waits is not None else not (pc.schedule == "interleaved" and pc.overlap_p2p),
            gathered=pc.zero_stage == 3,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """Describes one pipeline rank over a step: its weights, when it finishes, the time of its passes, and its activations."""

    layers: int
    dense: float
    """Number of this device's weights that all data-parallel ranks hold."""
    experts: float
    finish_s: float
    forward_s: float
    """Seconds of the forward passes of all its stages, for one micro-batch."""
    backward_s: float
    gather_s: float
    """Seconds in which a backward pass of all its stages gathers weights (ZeRO 3)."""
    activation_bytes: float
    """Peak bytes of the micro-batches in flight and of the one in progress."""


class Pipelines:
    """Simulates the pipelines of all layouts of one job; results that layouts share are computed once."""

    def __init__(self, model: Model, kernels: Kernels, topology: Topology, framework: Framework, *, balanced: bool) -> None:
        self.model, self.kernels, self.topology, self.framework, self.balanced = model, kernels, topology, framework, balanced
        self.ranks = functools.lru_cache(maxsize=4096)(self._ranks)
        self._work = functools.cache(functools.partial(OperatorCosts, model=model, kernels=kernels, topology=topology, framework=framework))

    def execution(self, layout: PipelineSettings) -> Execution:
        """Return when each action of the pipeline's schedule is executed."""
        return execute(_schedule(layout), self._times(layout))

    def _ranks(self, layout: PipelineSettings) -> list[Rank]:
        """Return the pipeline ranks, in order."""
        executed, shape = self.execution(layout), _schedule(layout).shape
        stages, held = self._stages(layout), self._activation_bytes(layout)
        seconds = [self._seconds(layout, stage) for stage in stages]
        ranks = []
        for rank in range(layout.pp):
            mine = shape.stages_of(rank)
            ranks.append(
                Rank(
                    layers=sum(stages[i].layers for i in mine),
                    dense=sum(stages[i].dense_parameter_count(self.model) for i in mine) / layout.tp,
                    experts=sum(stages[i].expert_parameter_count(self.model) for i in mine) / (layout.tp * layout.ep),
                    finish_s=executed.finish_s[rank],
                    forward_s=sum(seconds[i][0] for i in mine),
                    backward_s=sum(seconds[i][1] + seconds[i][2] for i in mine),
                    gather_s=sum(self._gathers_s(layout, stages[i])[0] for i in mine) if layout.gathered else 0.0,
                    activation_bytes=held[rank],
                )
            )
        return ranks

    def _stages(self, layout: PipelineSettings) -> tuple[StageCosts, ...]:
        if layout.stage_layout != stage_layout.EVEN:
            return of_parts(self.model, stage_layout.cut(layout.stage_layout, _schedule(layout).shape, self.model.part_flops))
        return cut(self.model, layout.pp * layout.chunks, balanced=self.balanced)

    def _times(self, layout: PipelineSettings) -> Times:
        forward, backward, weight = zip(*(self._seconds(layout, stage) for stage in self._stages(layout)), strict=True)
        if not _schedule(layout).split:
            backward, weight = tuple(map(sum, zip(backward, weight, strict=True))), ()
        return Times(
            forward_s=forward, backward_s=backward, weight_s=weight, transfer_s=self._transfers_s(layout), sender_waits=layout.sender_waits
        )

    def _seconds(self, layout: PipelineSettings, stage: StageCosts) -> tuple[float, float, float]:
        """Return the seconds of a stage for one micro-batch: forward, backward, and gradients of weights.

        The slower of the device and its host determines each.
        """
        passes = self._passes(layout, stage)
        both = passes.backward + passes.weight
        share = passes.weight.device_s / both.device_s if both.device_s else 0.0
        forward_s, backward_s = passes.forward.seconds, both.seconds
        if layout.gathered:
            gather_s, scatter_s = self._gathers_s(layout, stage)
            first = 1 / max(stage.layers, 1)  # nothing hides the first layer's gather and the last layer's scatter
            forward_s = max(forward_s, gather_s) + first * gather_s
            backward_s = max(backward_s, gather_s + scatter_s) + first * (gather_s + scatter_s)
        return forward_s, backward_s * (1 - share), backward_s * share

    def _passes(self, layout: PipelineSettings, stage: StageCosts) -> Passes:
        work = self._work(
            tp=layout.tp, cp=layout.cp, ep=layout.ep, sequences=layout.micro_batch, contended=layout.pp > 1 and self.topology.hosts > 1
        )
        passes = work.layer(layout.recompute) * stage.layers
        passes = passes + work.embedding if stage.embedding else passes
        passes = passes + work.head if stage.head else passes
        if layout.num_microbatches == 1:
            return passes
        count = (stage.dense_parameter_count(self.model) + stage.expert_parameter_count(self.model) / layout.ep) / layout.tp
        added_bytes = 3 * count * self.framework.gradient_bytes(self.kernels.bytes_per_element)
        return passes + Passes(weight=Cost(self.kernels.element_wise_s(added_bytes, stage.layers)))

    def _gathers_s(self, layout: PipelineSettings, stage: StageCosts) -> tuple[float, float]:
        """Return the seconds to gather a stage's weights and to scatter their gradients for each micro-batch (ZeRO 3)."""
        group = self.topology.group(layout.shards, layout.tp)
        count = stage.dense_parameter_count(self.model) / layout.tp
        gradient_bytes = self.framework.gradient_bytes(self.kernels.bytes_per_element)
        scatter_s = 0.0 if self.framework.fsdp else reduce_scatter_s(group, count * gradient_bytes)
        return all_gather_s(group, count * self.kernels.bytes_per_element), scatter_s

    def _transfers_s(self, layout: PipelineSettings) -> list[float]:
        """Return the seconds from each stage to the next, shape (stages - 1,), the host's time to start a transfer included.

        A transfer within a rank takes 0 s.
        """
        shape, stride = _schedule(layout).shape, layout.dp * layout.cp * layout.tp
        bytes_ = layout.micro_batch * self.model.seq_len // layout.cp * self.model.hidden * self.kernels.bytes_per_element
        bytes_ //= layout.tp if self.framework.sequence_parallel else 1
        seconds = []
        for stage in range(shape.stages - 1):
            here, there = sorted((shape.rank_of(stage), shape.rank_of(stage + 1)))
            hop = self.topology.hop(here * stride, there * stride, senders=stride) if here != there else None
            seconds.append(send_s(hop, bytes_) + self.kernels.hardware.host.collective_s if hop else 0.0)
        return seconds

    def _activation_bytes(self, layout: PipelineSettings) -> list[float]:
        """Return the peak bytes of each rank, shape (pp,).

        In a split schedule, the gradients of weights are assumed to need as many bytes as the backward pass frees.
        """
        activations = Activations(work=self._work(tp=layout.tp, cp=layout.cp, ep=layout.ep, sequences=layout.micro_batch, contended=False))
        held = [stage.layers * activations.layer_bytes(layout.recompute) for stage in self._stages(layout)]
        found, working = _schedule(layout), activations.working_bytes(layout.recompute)
        peaks = [peak + working for peak in peak_memory(found, Footprint(held=held, for_weights=held))]
        last = found.shape.rank_of(len(held) - 1)
        peaks[last] += max(activations.head_bytes - working, 0.0)
        return peaks


def _schedule(layout: PipelineSettings) -> Schedule:
    return build_schedule(layout.schedule, ranks=layout.pp, micro_batches=layout.num_microbatches, chunks=layout.chunks)
