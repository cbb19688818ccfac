"""An order as the CSV that torch.distributed.pipelining's runtime reads: a line for each rank, a cell for each node.

    1F0    forward pass of stage 1, micro-batch 0        1I0    backward pass, inputs' gradients alone
    1B0    backward pass, weights' gradients with it     1W0    weights' gradients

Weights' gradients right behind their backward pass are one cell with it, which spares torch to keep the graph between them.
"""

import re
from pathlib import Path

from oppa.errors import InputError
from oppa.pipeline.graph import BACKWARD, FORWARD, WEIGHT, Node, Order, Shape
from oppa.pipeline.validation import violations

LETTERS = {FORWARD: "F", BACKWARD: "I", WEIGHT: "W"}
WHOLE = "B"
_CELL = re.compile(r"(\d+)([FIBW])(\d+)")


def write_order(order: Order) -> str:
    """The text of the file."""
    return "".join(",".join(row) + "\n" for row in cells(order))


def cells(order: Order) -> list[list[str]]:
    """Its cells, for each rank."""
    return [_cells(nodes, split=order.split) for nodes in order.ranks]


def read_order(path: Path) -> Order:
    """An order that `write_order` wrote, or torch, or somebody's editor.

    Raises:
        InputError: what is no order, and where; or one that does not hold (`oppa.pipeline.validation`).
    """
    try:
        lines = [[cell.strip() for cell in line.split(",") if cell.strip()] for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"`{path}` cannot be read: {error}", hint="name the CSV file of an order") from None
    ranks = [[node for cell in row for node in _nodes(cell, f"`{path}`, line {number}")] for number, row in enumerate(lines, start=1)]
    if not ranks or not all(ranks):
        raise InputError(f"`{path}`: a rank has nothing to do", hint="a line for each rank, a cell for each pass")
    order = Order(
        shape=_shape(ranks), split=any("I" in cell or "W" in cell for row in lines for cell in row), ranks=tuple(map(tuple, ranks))
    )
    whole = order if order.split else Order(shape=order.shape, ranks=tuple(tuple(n for n in nodes if n.kind != WEIGHT) for nodes in ranks))
    if wrong := violations(whole):
        raise InputError(f"`{path}` is no order: {wrong[0]}", hint=f"{len(wrong)} such in all" if len(wrong) > 1 else "")
    return whole


def _cells(nodes: tuple[Node, ...], *, split: bool) -> list[str]:
    row: list[str] = []
    for node, behind in zip(nodes, (*nodes[1:], None), strict=True):
        place = (node.stage, node.micro_batch)
        if node.kind == BACKWARD and (not split or behind == Node(WEIGHT, *place)):
            row.append(f"{node.stage}{WHOLE}{node.micro_batch}")
        elif node.kind != WEIGHT or row[-1] != f"{node.stage}{WHOLE}{node.micro_batch}":
            row.append(f"{node.stage}{LETTERS[node.kind]}{node.micro_batch}")
    return row


def _nodes(cell: str, where: str) -> list[Node]:
    if not (match := _CELL.fullmatch(cell)):
        raise InputError(f"{where}: `{cell}` is no pass", hint="stage, one of F I B W, micro-batch: `1F0`")
    stage, letter, micro_batch = int(match[1]), match[2], int(match[3])
    kinds = {WHOLE: (BACKWARD, WEIGHT)} | {letter: (kind,) for kind, letter in LETTERS.items()}
    return [Node(kind, stage, micro_batch) for kind in kinds[letter]]


def _shape(ranks: list[list[Node]]) -> Shape:
    """As the stages lie: a V where the last one is on the first rank, else again and again."""
    stages = 1 + max(node.stage for nodes in ranks for node in nodes)
    folded = len(ranks) > 1 and stages == 2 * len(ranks) and any(node.stage == stages - 1 for node in ranks[0])
    micro_batches = 1 + max(node.micro_batch for nodes in ranks for node in nodes)
    return Shape(ranks=len(ranks), micro_batches=micro_batches, chunks=max(stages // len(ranks), 1), folded=folded)
