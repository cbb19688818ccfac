"""A kernel is never faster than the device, and takes whole waves of tiles."""

import pytest

from oppa.simulator.hardware import load_hardware
from oppa.simulator.kernels import KERNEL_S, TILES, Kernels


@pytest.fixture
def kernels():
    return Kernels(load_hardware("A100-80GB"), "bf16")


@pytest.mark.parametrize("shape", [(64, 64, 64), (4096, 4096, 4096), (16384, 12288, 4096), (8192, 32, 8192), (7, 5000, 3)])
def test_nothing_is_faster_than_the_device(kernels, shape):
    m, n, k = shape
    seconds = kernels.matmul_s(m, n, k)
    assert seconds >= 2 * m * n * k / kernels.flops_per_s
    assert seconds >= 2 * (m * k + k * n + m * n) / kernels.bytes_per_s


def test_large_products_come_near_to_it(kernels):
    assert 2 * 16384**3 / kernels.matmul_s(16384, 16384, 16384) == pytest.approx(kernels.flops_per_s, rel=0.05)


def test_a_wave_costs_the_same_full_or_not(kernels):
    """109 tiles on 108 processors take as long as 216."""
    full, over = (kernels.tiled_s(256 * tiles, 128, 4096, TILES[0]) for tiles in (108, 109))
    assert over == pytest.approx(2 * full)
    assert kernels.tiled_s(256 * 216, 128, 4096, TILES[0]) == pytest.approx(over)


def test_a_product_with_few_tiles_is_split(kernels):
    """A small gradient of weights over many tokens uses more processors than it has tiles."""
    whole = min(kernels.tiled_s(256, 256, 65536, tile) for tile in TILES)
    assert kernels.matmul_s(256, 256, 65536) < whole / 1.5


def test_small_kernels_cost_their_launch(kernels):
    assert kernels.element_wise_s(0, 7) == pytest.approx(7 * KERNEL_S)
    assert kernels.matmul_s(1, 1, 1) > KERNEL_S
