"""A slow node is one beyond the spread of the others, and a node is rarely named if all are alike."""

import dataclasses
import datetime

import numpy as np
import pytest

from oppa.cost.hardware import read_hardware
from oppa.launchers.measurement.derived import derive
from oppa.launchers.measurement.figures import Figure, HardwareMeasurement, MeasuredNode
from oppa.launchers.measurement.hardware_text import hardware_text
from oppa.launchers.measurement.nodes import FALSE_ALARM, names, slow_nodes
from oppa.problem.cluster import HardwareFile
from tests.launchers.measurements import measured

WORK = 1e12


def node(name: str, **rates: float) -> MeasuredNode:
    """Return a node whose repeats vary by 0.2% around its rates."""
    repeats = (0.998, 1.0, 1.002)
    figures = [Figure(what=what, work=WORK, seconds=tuple(each * WORK / rate for each in repeats)) for what, rate in rates.items()]
    return MeasuredNode(name=name, figures=tuple(figures))


def cluster(*rates: float) -> list[MeasuredNode]:
    return [node(f"n{number}", matmul=rate, memory=1.0) for number, rate in enumerate(rates)]


@pytest.mark.parametrize(
    ("rates", "slow"),
    [
        ((1.00, 1.01, 0.99, 1.0, 0.8), ["n4"]),
        ((1.00, 1.01, 0.99, 1.0, 0.98), []),
        ((1.00, 1.01, 0.7, 1.0, 0.99, 1.005, 0.72), ["n2", "n6"]),  # two that would hide each other
        ((1.00, 1.001, 1.4, 1.0, 0.999), []),  # a fast one makes no other slow
        ((1.0, 1.1, 0.8), []),
        ((1.0, 0.5), []),  # nothing tells which of two is the slow one
    ],
)
def test_a_node_is_slow_beyond_the_spread_of_the_others(rates, slow) -> None:
    assert names(slow_nodes(cluster(*rates))) == slow


def test_the_share_is_that_of_the_others_median() -> None:
    (found,) = slow_nodes(cluster(1.00, 1.01, 0.99, 1.0, 0.8))
    assert (found.figure.what, found.share) == ("matmul", pytest.approx(0.8)) and found.to_dict()["name"] == "n4"


@pytest.mark.parametrize("count", [3, 4, 8, 32])
def test_equal_nodes_are_rarely_named(count) -> None:
    """One node or more is named with the stated probability at most; 400 clusters leave three of its standard deviations."""
    draw = np.random.default_rng(count)
    named = sum(bool(slow_nodes(cluster(*np.exp(0.02 * draw.standard_normal(count))))) for _ in range(400))
    assert named / 400 <= FALSE_ALARM + 3 * (FALSE_ALARM * (1 - FALSE_ALARM) / 400) ** 0.5


def test_a_hardware_file_names_the_slow_nodes() -> None:
    found = dataclasses.replace(measured(hosts=5), nodes=tuple(cluster(1.00, 1.01, 0.99, 1.0, 0.8)))
    assert HardwareMeasurement.from_dict(found.to_dict()) == found
    text = hardware_text(found, derive(found), datetime.date(2026, 1, 2))
    assert read_hardware(HardwareFile(name="mine", text=text), on_cpu=False).slow_nodes == ("n4",)
    alike = dataclasses.replace(found, nodes=tuple(cluster(1.00, 1.01, 0.99, 1.0, 1.005)))
    assert "slow_nodes" not in hardware_text(alike, derive(alike), datetime.date(2026, 1, 2))
