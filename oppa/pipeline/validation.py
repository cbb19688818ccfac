"""Check a schedule: every action occurs once and on its rank, nothing deadlocks, and no rank frees memory that it does not hold."""

from collections import Counter

from oppa.pipeline.graph import BACKWARD, FORWARD, KINDS, Action, PipelineShape, Schedule
from oppa.pipeline.memory import Footprint, memory_curves


def violations(schedule: Schedule) -> list[str]:
    """Return a message for each violation; empty for a valid schedule."""
    return [*_wrong_actions(schedule), *_deadlock(schedule), *_negative_memory(schedule)]


def all_actions(shape: PipelineShape, *, split: bool) -> set[Action]:
    """Return every action of the graph."""
    kinds = KINDS if split else (FORWARD, BACKWARD)
    return {Action(kind, stage, each) for kind in kinds for stage in range(shape.stages) for each in range(shape.micro_batches)}


def _wrong_actions(schedule: Schedule) -> list[str]:
    expected = all_actions(schedule.shape, split=schedule.split)
    found = Counter(action for actions in schedule.ranks for action in actions)
    misplaced = [
        action for rank, actions in enumerate(schedule.ranks) for action in actions if schedule.shape.rank_of(action.stage) != rank
    ]
    return [
        *(f"{name(action)} is missing" for action in sorted(expected - found.keys())),
        *(f"{name(action)} is not in the graph" for action in sorted(found.keys() - expected)),
        *(f"{name(action)} occurs {count} times" for action, count in sorted(found.items()) if count > 1),
        *(f"{name(action)} is not on its rank, {schedule.shape.rank_of(action.stage)}" for action in misplaced),
    ]


def _deadlock(schedule: Schedule) -> list[str]:
    reached = Counter(schedule.sequence.ranks)
    stuck = [(rank, actions[reached[rank]]) for rank, actions in enumerate(schedule.ranks) if reached[rank] < len(actions)]
    return [f"rank {rank} deadlocks at {name(action)}" for rank, action in stuck]


def _negative_memory(schedule: Schedule) -> list[str]:
    stages = schedule.shape.stages
    curves = memory_curves(schedule, Footprint(held=[1.0] * stages, for_weights=[0.5] * stages))
    return [f"rank {rank} frees memory that it does not hold" for rank, curve in enumerate(curves) if curve.min(initial=0.0) < 0]


def name(action: Action) -> str:
    """Return the text of an action: `F(stage 1, micro-batch 3)`."""
    return f"{'FBW'[action.kind]}(stage {action.stage}, micro-batch {action.micro_batch})"
