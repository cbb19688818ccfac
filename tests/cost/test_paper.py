"""The paper's prior means (OPPA App. D), equation by equation, against numbers worked out by hand."""

import pytest
import torch

from oppa.cost import paper
from tests.cost.conftest import work_of

C = {
    name: torch.tensor(value, dtype=torch.float64)
    for name, value in {
        "t_comp": 64.0,
        "dp_hop_intra": 1.0,
        "dp_volume_intra": 32.0,
        "tp_hop_intra": 2.0,
        "tp_volume_intra": 4.0,
        "pp_transfer_intra": 0.5,
        "dp_hop_inter": 3.0,
        "dp_volume_inter": 64.0,
        "tp_hop_inter": 5.0,
        "tp_volume_inter": 8.0,
        "pp_transfer_inter": 2.0,
        "m1": 80.0,
        "m2": 640.0,
        "m3": 5.0,
    }.items()
}
HOST = {"gpus_per_node": 8}


def of(function, **layout) -> float:
    return function(work_of({"model_chunks": 1, **HOST, **layout}), C).item()


def test_computation_is_divided_among_all_and_waits_for_the_bubble() -> None:  # eq. 10: 64 / 64 * (4 + 1 / 2)
    assert of(paper.computation, dp=16, tp=2, pp=2, model_chunks=2, mbs=1, gbs=64) == 4.5


def test_without_a_pipeline_there_is_one_microbatch() -> None:  # eq. 10, App. C.1: 64 / 4 * 1
    assert of(paper.computation, dp=4, tp=1, pp=1, mbs=1, gbs=64) == 16


def test_a_ring_all_reduce() -> None:  # eq. 11: 2 * 3 * 0.5 + 3 / 4 * 8 * 10
    assert paper.all_reduce(*map(torch.tensor, (4.0, 8.0, 0.5, 10.0))).item() == 63


@pytest.mark.parametrize(
    ("layout", "seconds"),
    [
        ({"dp": 8}, 2 * 7 * 1 + 7 / 8 * 32),  # eq. 15: one host
        ({"dp": 4, "tp": 2}, 2 * 3 * 1 + 3 / 4 * 32 / 2 + (2 * 2 + 1 / 2 * 4)),  # eqs. 12 and 16, one host
        ({"dp": 4, "tp": 4}, 2 * 3 * 3 + 3 / 4 * 64 / 4 + (2 * 3 * 2 + 3 / 4 * 4)),  # eq. 14: two hosts, dp <= 8
        ({"dp": 16}, (14 + 7 / 8 * 32) + (2 * 1 * 3 + 1 / 2 * 64 / 8)),  # eq. 13: within hosts, then between two
        ({"dp": 20}, (14 + 7 / 8 * 32) + (2 * 2 * 3 + 2 / 3 * 64 / 8)),  # eq. 13: 20 / 8 rounded up
        ({"dp": 1, "tp": 16}, 2 * 15 * 5 + 15 / 16 * 8),  # eq. 16: a group larger than a host
    ],
)
def test_communication_without_a_pipeline(layout, seconds) -> None:
    assert of(paper.communication, **{"tp": 1, "pp": 1, "mbs": 1, "gbs": 16 * layout["dp"], **layout}) == pytest.approx(seconds)


@pytest.mark.parametrize(("pp", "transfer"), [(2, 0.5), (16, 2.0)])
def test_a_pipeline_sends_every_microbatch_over_every_boundary_and_back(pp, transfer) -> None:  # eqs. 17 and 18
    assert of(paper.communication, dp=1, tp=1, pp=pp, mbs=1, gbs=32) == (pp - 1) * 2 * 32 * transfer


def test_tensor_parallel_operations_are_counted_per_microbatch() -> None:  # eq. 16: 4 * (2 * 2 + 4 / 2), and eq. 18: 2 * 4 * 0.5
    assert of(paper.communication, dp=1, tp=2, pp=2, mbs=1, gbs=4) == 24 + 4


def test_throughput_is_one_over_the_sum() -> None:  # eqs. 19 and 20
    layout = {"dp": 2, "tp": 2, "pp": 2, "mbs": 2, "gbs": 16}
    assert of(paper.throughput, **layout) == pytest.approx(1 / (of(paper.computation, **layout) + of(paper.communication, **layout)))


@pytest.mark.parametrize(("limit", "expected"), [(1000.0, 80 / 4 + 640 / (8 * 4) + 5), (30.0, 30.0)])
def test_memory_is_cut_off_at_the_limit(limit, expected) -> None:  # eq. 21
    assert paper.memory(work_of({"dp": 2, "tp": 2, "pp": 2, "mbs": 1, "gbs": 8}), C, limit).item() == expected


def test_one_host_teaches_nothing_of_the_network() -> None:
    within, across = work_of({"dp": 4, "tp": 2, "pp": 1}), work_of({})
    assert set(paper.coefficient_names(within)) == {"t_comp", *paper.INTRA}
    assert set(paper.coefficient_names(across)) == {"t_comp", *paper.INTRA, *paper.INTER}
