"""Predict how long one device computes, kernel by kernel, from the shapes.

A matrix product (m, k) x (k, n) is cut into tiles, and each processor computes one tile at a time. A last wave that is not full costs as
much as a full one (NVIDIA, Matrix Multiplication Background: tile and wave quantisation). Long products with few tiles are split along k.
No kernel is faster than its reads and writes (the roofline of Williams et al. 2009). Each takes some microseconds to begin and end.
"""

import dataclasses
import functools
import math

from oppa.simulator.hardware import SimulatedHardware

TILES = ((256, 128, 1.0), (128, 128, 0.93), (128, 64, 0.78), (64, 64, 0.58))
"""Rows, columns and relative speed of cuBLAS's kernels. A smaller tile reads more for what it computes. Speeds are assumed."""

SPLITS = (1, 2, 4, 8)
FILL = 96
"""Steps of k that a tile takes to fill and drain a processor's pipeline. Assumed."""

KERNEL_S = 3e-6
"""Seconds between the end of a kernel's work and the start of the next one's: launch latency and tail. Assumed."""

ATTENTION_EFFICIENCY = 0.75
"""Speed of fused attention relative to a large matrix product (Dao 2023, figure 4: 200 of 312 Tflop/s forward on A100)."""


@dataclasses.dataclass(frozen=True, eq=False)
class Kernels:
    """Predicts the seconds of kernels on one device at one precision."""

    hardware: SimulatedHardware
    precision: str

    @property
    def bytes_per_element(self) -> int:
        """Return the bytes of one element of weights and activations."""
        return 4 if self.precision == "fp32" else 2

    @functools.cached_property
    def flops_per_s(self) -> float:
        """Return the operations per second that large matrix products sustain."""
        return self.hardware.peak_flops_per_s(self.precision) * self.hardware.device.matmul_efficiency

    @functools.cached_property
    def bytes_per_s(self) -> float:
        """Return the memory bandwidth that element-wise kernels reach, in bytes per second."""
        return self.hardware.device.memory_bandwidth_bytes_per_s * self.hardware.device.memory_efficiency

    @functools.lru_cache(maxsize=65536)  # noqa: B019 - bounded by the number of shapes; a Kernels lives as long as the process
    def matmul_s(self, m: int, n: int, k: int, batch: int = 1) -> float:
        """Return the seconds of `batch` products of (m, k) with (k, n)."""
        options = ((tile, split) for tile in TILES for split in SPLITS if split == 1 or k >= 512 * split)
        compute_s = min(self.tiled_s(m, n, k, tile, batch=batch, split=split) for tile, split in options)
        bytes_ = self.bytes_per_element * batch * (m * k + k * n + m * n)
        return max(compute_s, bytes_ / self.bytes_per_s) + KERNEL_S

    def tiled_s(self, m: int, n: int, k: int, tile: tuple[int, int, float], *, batch: int = 1, split: int = 1) -> float:
        """Return the seconds to compute the products with one size of tile, each cut into `split` pieces along k."""
        rows, columns, speed = tile
        processors = self.hardware.device.processors
        waves = math.ceil(batch * math.ceil(m / rows) * math.ceil(n / columns) * split / processors)
        tile_flops = 2 * rows * columns * (k / split + FILL)
        reduction_s = 8 * batch * m * n * split / self.bytes_per_s if split > 1 else 0.0
        return waves * tile_flops * processors / (self.flops_per_s * speed) + reduction_s

    def attention_s(self, flops: float, bytes_: float) -> float:
        """Return the seconds of a fused attention, which operations or memory traffic limit."""
        return max(flops / (self.flops_per_s * ATTENTION_EFFICIENCY), bytes_ / self.bytes_per_s) + KERNEL_S

    def element_wise_s(self, bytes_: float, kernels: int = 1) -> float:
        """Return the seconds to read and write `bytes_` bytes in `kernels` kernels."""
        return bytes_ / self.bytes_per_s + kernels * KERNEL_S
