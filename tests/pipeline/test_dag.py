"""The graph of an iteration, with transfers as nodes, says what the execution says."""

import collections

import numpy as np
import pytest

from oppa.pipeline.dag import NAMES, RECEIVE_BACKWARD, RECEIVE_FORWARD, SEND_BACKWARD, SEND_FORWARD, Dag
from oppa.pipeline.execution import Times, execute
from oppa.pipeline.graph import BACKWARD, FORWARD, WEIGHT
from oppa.pipeline.memory import Footprint, memory_curves
from oppa.pipeline.registry import build_schedule
from oppa.pipeline.schedules import FOLDED, SCHEDULES
from oppa.random_streams import stream


def chunks_of(schedule: str) -> int:
    return 2 if schedule in FOLDED or schedule.startswith("interleaved") else 1


@pytest.mark.parametrize("schedule", [*SCHEDULES, "search"])
def test_the_longest_path_is_the_makespan(schedule: str) -> None:
    made = build_schedule(schedule, ranks=4, micro_batches=8, chunks=chunks_of(schedule))
    draws, stages = stream(0, schedule), made.shape.stages
    forward, backward, weight = draws.random((3, stages)).tolist()
    times = Times(
        forward_s=forward, backward_s=backward, weight_s=weight if made.split else (), transfer_s=draws.random(stages - 1).tolist()
    )
    footprint = Footprint(held=draws.random(stages).tolist(), for_weights=draws.random(stages).tolist())
    dag = Dag.of(made, times, footprint)
    assert max(dag.ends_s()) == pytest.approx(execute(made, times).makespan_s, rel=1e-12)
    path = dag.critical_path()
    assert sum(node.seconds for node in path) == pytest.approx(max(dag.ends_s()), rel=1e-12)
    for rank, curve in enumerate(memory_curves(made, footprint)):
        changes = [node.memory for node in dag.nodes if node.rank == rank and node.kind in (FORWARD, BACKWARD, WEIGHT)]
        np.testing.assert_allclose(np.cumsum(changes), curve)


def test_what_goes_from_rank_to_rank_is_sent_and_received() -> None:
    times = Times(forward_s=[1.0] * 2, backward_s=[1.0] * 2, transfer_s=[0.5])
    dag = Dag.of(build_schedule("1f1b", ranks=2, micro_batches=3), times, Footprint(held=[1.0, 1.0]))
    counts = collections.Counter(node.kind for node in dag.nodes)
    assert counts == {FORWARD: 6, BACKWARD: 6, SEND_FORWARD: 3, RECEIVE_FORWARD: 3, SEND_BACKWARD: 3, RECEIVE_BACKWARD: 3}
    received = {position for position, node in enumerate(dag.nodes) if node.kind == RECEIVE_FORWARD}
    assert all([dag.nodes[need].kind for need in dag.needs[position]] == [SEND_FORWARD] for position in received)
    assert set(counts) <= set(NAMES)


def test_what_stays_on_a_rank_is_not_sent() -> None:
    folded = Dag.of(
        build_schedule("zb-v", ranks=2, micro_batches=4, chunks=2),
        Times(forward_s=[1.0] * 4, backward_s=[1.0] * 4, weight_s=[1.0] * 4, transfer_s=[0.5] * 3),
        Footprint(held=[1.0] * 4),
    )
    assert {node.stage for node in folded.nodes if node.kind == SEND_FORWARD} == {0, 2}, "stages 1 and 2 are one rank's"
