"""Predict the seconds of attention whose tokens are split over context-parallel ranks.

Notation:
    c ranks share a sequence, and each holds 1/c of its tokens; the causal mask is balanced, so each computes 1/c of the scores

A ring computes with one block of keys and values while the next one arrives. It merges the outputs of its c blocks (Liu et al. 2023, Ring
Attention). The backward pass sends the gradients of keys and values along, too. Otherwise ranks exchange heads for tokens before attention
and back after it (Jacobs et al. 2023, DeepSpeed Ulysses), and nothing hides the exchange.
"""

import dataclasses

from oppa.simulator.collectives import all_gather_s, all_to_all_s
from oppa.simulator.kernels import KERNEL_S, Kernels
from oppa.simulator.topology import RankGroup


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ContextExchange:
    """Describes the tensors of one rank's tokens that attention needs on other ranks."""

    group: RankGroup
    kernels: Kernels
    ring: bool
    kv_bytes: float
    """Bytes of the rank's keys and values."""
    query_bytes: float
    """Bytes of its queries, as many as of its outputs."""

    @property
    def collectives(self) -> int:
        """Return the transfers of one pass that the host starts."""
        return self.group.size - 1 if self.ring else 4

    def exposed_s(self, computed_s: float, *, backward: bool) -> float:
        """Return the seconds that a pass takes beyond those of the attention itself, `computed_s`."""
        size = self.group.size
        if size == 1:
            return 0.0
        if not self.ring:
            return all_to_all_s(self.group, self.kv_bytes + 2 * self.query_bytes) * (2 if backward else 1)
        sent_s = all_gather_s(self.group, size * self.kv_bytes * (2 if backward else 1))
        hidden_s = computed_s * (size - 1) / size
        merged_s = self.kernels.element_wise_s(3 * (size - 1) * self.query_bytes, size - 1)
        return max(sent_s - hidden_s, 0.0) + merged_s + (size - 1) * KERNEL_S
