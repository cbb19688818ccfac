"""Predict the gradient communication of data-parallel ranks, the part of it that is exposed, and the optimizer's time.

Notation:
    n buckets of equal size; t seconds to communicate one; w seconds of backward pass, during which they become ready one after the other
    bucket i is ready at i w / n; they are communicated in turn, and the last ends at max(w / n + n t, w + t); what exceeds w is exposed
"""

import dataclasses
import math

from oppa.problem.configuration import Configuration
from oppa.simulator.collectives import all_gather_s, all_reduce_s, reduce_scatter_s
from oppa.simulator.degrees import expert_shards, replicas, shards
from oppa.simulator.framework import Framework
from oppa.simulator.kernels import Kernels
from oppa.simulator.topology import RankGroup, Topology
from oppa.units import MIB

TENSORS_PER_LAYER = 9
"""Weight tensors of a transformer layer: at least four of the attention, two or three of the feed-forward network, and two norms."""

ADAM_BYTES = 28
"""Bytes that Adam reads and writes per weight: the fp32 master copy and two moments, both ways, and the gradient."""

OVERLAP_COST = 0.1
"""Seconds that computation loses per second of hidden communication. Assumed.

Both use the device's processors and its memory bandwidth.
"""


def exposed_s(*, buckets: int, bucket_s: float, window_s: float) -> float:
    """Return the seconds by which communication of `buckets` buckets outlasts the window during which they become ready."""
    return max(window_s / buckets + buckets * bucket_s, window_s + bucket_s) - window_s


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class DataParallel:
    """Predicts the communication and updates of the ranks that hold the same part of the model."""

    configuration: Configuration
    topology: Topology
    kernels: Kernels
    framework: Framework

    @property
    def group(self) -> RankGroup:
        """Return the ranks that share dense weights."""
        return self.topology.group(replicas(self.configuration), self.configuration.tp)

    @property
    def shard_group(self) -> RankGroup:
        """Return the ranks over which ZeRO shards dense weights."""
        return self.topology.group(shards(self.configuration), self.configuration.tp)

    @property
    def copies(self) -> RankGroup:
        """Return the ranks that hold the same shard: one of each group of HSDP, otherwise the rank alone."""
        pc = self.configuration
        return self.topology.group(replicas(pc) // shards(pc), shards(pc) * pc.tp)

    @property
    def expert_group(self) -> RankGroup:
        """Return the ranks that share experts."""
        pc = self.configuration
        return self.topology.group(replicas(pc) // pc.ep, pc.tp * pc.ep)

    @property
    def overlapped(self) -> bool:
        """Return whether gradients are communicated during the backward pass.

        Under ZeRO, a framework that reduces whole gradients never overlaps. FSDP does, and a framework whose pipelines overlap. Else
        `overlap_zero_comm` decides under ZeRO; without ZeRO, gradients overlap only if pp = 1 (DistributedDataParallel).
        """
        pc = self.configuration
        if pc.zero_stage and self.framework.whole_gradients:
            return False
        if self.framework.pipelines_overlap_gradients or self.by_layer:
            return True
        return pc.pp == 1 if pc.zero_stage == 0 else pc.overlap_zero_comm

    @property
    def by_layer(self) -> bool:
        """Return whether FSDP gathers weights and reduces gradients layer by layer."""
        return self.framework.fsdp and self.configuration.zero_stage >= 2

    @property
    def gradient_bytes(self) -> int:
        """Return the bytes of one gradient element in communication."""
        return self.framework.gradient_bytes(self.kernels.bytes_per_element)

    def gradients_s(self, *, dense: float, experts: float, layers: int, window_s: float) -> float:
        """Return the exposed seconds of synchronising this rank's gradients once.

        Args:
            dense: Number of the rank's weights that all data-parallel ranks share.
            experts: Number of the rank's expert weights.
            layers: Layers of the rank.
            window_s: Seconds of backward pass that can hide the communication.
        """
        return sum(
            self._exposed_s(group, count * self.gradient_bytes, layers, window_s)
            for group, count in ((self.group, dense), (self.expert_group, experts))
            if group.size > 1 and count
        )

    def copied_s(self, *, weights: float, layers: int, window_s: float) -> float:
        """Return the exposed seconds of adding the shards of gradients of ZeRO 3 between the groups of HSDP, layer by layer."""
        if self.copies.size == 1:
            return 0.0
        buckets = max(layers, 1)
        bucket_s = all_reduce_s(self.copies, weights / shards(self.configuration) * self.gradient_bytes / buckets)
        return exposed_s(buckets=buckets, bucket_s=bucket_s, window_s=window_s)

    def weights_s(self, *, dense: float, experts: float, forward_s: float) -> float:
        """Return the exposed seconds of gathering the weights that ZeRO 1 and 2 update in shards; 0 for other stages.

        With `overlap_zero_allgather`, and under FSDP, the forward pass hides them, except for at least 5%.
        """
        pc = self.configuration
        if pc.zero_stage not in (1, 2):
            return 0.0
        counts = ((self.shard_group, dense), (self.expert_group, experts))
        seconds = sum(all_gather_s(group, count * self.kernels.bytes_per_element) for group, count in counts)
        return max(seconds - forward_s, 0.05 * seconds) if pc.overlap_zero_allgather or self.by_layer else seconds

    def optimizer_s(self, *, dense: float, experts: float, layers: int) -> float:
        """Return the seconds of the gradient norm and of Adam over the weights that this rank updates.

        The slower of the device and its host determines the time.
        """
        pc = self.configuration
        mine = dense / (shards(pc) if pc.zero_stage else 1) + experts / (expert_shards(pc) if pc.zero_stage else 1)
        bytes_ = mine * (ADAM_BYTES + 2 * self.gradient_bytes)
        host_s = (TENSORS_PER_LAYER * layers + 5) * self.kernels.hardware.host.operation_s
        return max(self.kernels.element_wise_s(bytes_, 4), host_s)

    def _exposed_s(self, group: RankGroup, bytes_: float, layers: int, window_s: float) -> float:
        buckets = self._buckets(bytes_, layers)
        each = bytes_ / buckets
        scattered = self.configuration.zero_stage >= 2 or (self.configuration.zero_stage == 1 and self.framework.scattered_gradients)
        wire_s = self._scattered_s(group, each) if scattered else all_reduce_s(group, each)
        copied_s = self.kernels.element_wise_s(2 * each, 2) if self.configuration.zero_stage else 0.0
        bucket_s = max(wire_s, self.kernels.hardware.host.collective_s) + copied_s
        seconds = exposed_s(buckets=buckets, bucket_s=bucket_s, window_s=window_s if self.overlapped else 0.0)
        return seconds + OVERLAP_COST * (buckets * bucket_s - seconds)

    def _scattered_s(self, group: RankGroup, bytes_: float) -> float:
        """Return the seconds of a reduce-scatter. Under HSDP each group has its own, and the groups then add their shards."""
        if self.copies.size == 1:
            return reduce_scatter_s(group, bytes_)
        return reduce_scatter_s(self.shard_group, bytes_) + all_reduce_s(self.copies, bytes_ / self.shard_group.size)

    def _buckets(self, bytes_: float, layers: int) -> int:
        """Return the number of buckets, from the bucket size of the configuration.

        FSDP has one for each layer. A framework that reduces whole gradients under ZeRO has one. A pipeline without ZeRO sends each tensor
        separately, unless it overlaps.
        """
        pc = self.configuration
        if pc.zero_stage and self.framework.whole_gradients:
            return 1
        if self.by_layer:
            return max(layers, 1)
        if pc.zero_stage == 0 and pc.pp > 1 and not self.framework.pipelines_overlap_gradients:
            return TENSORS_PER_LAYER * max(layers, 1)
        plain = pc.zero_stage == 0 or (pc.zero_stage == 1 and self.framework.ddp_buckets)
        return max(1, math.ceil(bytes_ / (MIB * (pc.dp_bucket_mb if plain else pc.zero_bucket_mb))))
