"""Read and write schedules as the CSV of torch.distributed.pipelining's runtime: a line for each rank, a cell for each action.

    1F0    forward pass of stage 1, micro-batch 0        1I0    backward pass, inputs' gradients alone
    1B0    backward pass, weights' gradients with it     1W0    weights' gradients

If weights' gradients follow their backward pass directly, one cell holds both. torch then need not keep the graph between them.
"""

import re
from collections.abc import Iterable, Iterator

from oppa.errors import InputError
from oppa.pipeline.graph import BACKWARD, FORWARD, WEIGHT, Action, PipelineShape, Schedule, whole
from oppa.pipeline.validation import violations

LETTERS = {FORWARD: "F", BACKWARD: "I", WEIGHT: "W"}
WHOLE = "B"
_CELL = re.compile(r"(\d{1,9})([FIBW])(\d{1,9})")


def to_csv(schedule: Schedule) -> str:
    """Return the CSV text of a schedule."""
    return "".join(",".join(row) + "\n" for row in cells(schedule))


def cells(schedule: Schedule) -> list[list[str]]:
    """Return the cells of a schedule, for each rank."""
    return [list(_cells(schedule, actions)) for actions in schedule.ranks]


def parse_schedule(text: str, where: str) -> Schedule:
    """Parse the text of a schedule, whether `to_csv`, torch or an editor wrote it.

    Args:
        where: Names the source of the text in errors.

    Raises:
        InputError: a cell is not a pass, and its line; or the schedule is not valid (`oppa.pipeline.validation`).
    """
    lines = [[cell.strip() for cell in line.split(",") if cell.strip()] for line in text.splitlines()]
    ranks = [[action for cell in row for action in _actions(cell, f"{where}, line {number}")] for number, row in enumerate(lines, start=1)]
    if not ranks or not all(ranks):
        raise InputError(f"{where}: a rank has no actions", hint="write a line for each rank, and a cell for each action")
    schedule = Schedule(
        shape=_shape(ranks), split=any("I" in cell or "W" in cell for row in lines for cell in row), ranks=tuple(map(tuple, ranks))
    )
    if schedule.shape.stages * schedule.shape.micro_batches > (count := sum(map(len, ranks))):
        size = f"{schedule.shape.stages} stages and {schedule.shape.micro_batches} micro-batches"
        raise InputError(f"{where} is not a valid schedule: it has {count} actions for {size}", hint="write every pass of each micro-batch")
    found = schedule if schedule.split else whole(schedule)
    if wrong := violations(found):
        raise InputError(
            f"{where} is not a valid schedule: {wrong[0]}", hint=f"correct this and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        )
    return found


def _cells(schedule: Schedule, actions: Iterable[Action]) -> Iterator[str]:
    for action in actions:
        both = action.kind == BACKWARD and (not schedule.split or action in schedule.together)
        if action.kind != WEIGHT or action not in schedule.together:
            yield f"{action.stage}{WHOLE if both else LETTERS[action.kind]}{action.micro_batch}"


def _actions(cell: str, where: str) -> list[Action]:
    if not (match := _CELL.fullmatch(cell)):
        raise InputError(f"{where}: `{cell}` is not an action", hint="write the stage, one of F I B W, and the micro-batch: `1F0`")
    stage, letter, micro_batch = int(match[1]), match[2], int(match[3])
    kinds = {WHOLE: (BACKWARD, WEIGHT)} | {letter: (kind,) for kind, letter in LETTERS.items()}
    return [Action(kind, stage, micro_batch) for kind in kinds[letter]]


def _shape(ranks: list[list[Action]]) -> PipelineShape:
    """Return a V if ranks have two stages and the first rank holds the last one, else a shape whose chunks start at rank 0."""
    stages = 1 + max(action.stage for actions in ranks for action in actions)
    folded = len(ranks) > 1 and stages == 2 * len(ranks) and any(action.stage == stages - 1 for action in ranks[0])
    micro_batches = 1 + max(action.micro_batch for actions in ranks for action in actions)
    return PipelineShape(ranks=len(ranks), micro_batches=micro_batches, chunks=max(stages // len(ranks), 1), folded=folded)
