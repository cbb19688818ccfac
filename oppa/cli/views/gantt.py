"""Draw an executed schedule as lines of letters: F forward, B backward, W weight gradients, a dot for an idle rank."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

    from oppa.pipeline.execution import Execution

LETTERS, WAITS = "FBW", "·"
STYLES = {"F": "blue", "B": "yellow", "W": "green", WAITS: "dim"}


def gantt(executed: "Execution", columns: int) -> list["Text"]:
    """Return a line of `columns` characters for each rank. A column shows the pass that takes most of its time.

    Later model chunks have small letters.
    """
    shape = executed.schedule.shape
    label = len(str(shape.ranks - 1))
    cells = columns - label - 1
    per_s = cells / executed.makespan_s
    shares: list[list[dict[str, float]]] = [[{WAITS: 1.0} for _ in range(cells)] for _ in range(shape.ranks)]
    for span in executed.spans():
        letter = LETTERS[span.action.kind]
        letter = letter.lower() if span.action.stage >= shape.ranks else letter
        first, last = span.start_s * per_s, span.end_s * per_s
        for column in range(int(first), min(int(last) + 1, cells)):
            covered = min(last, column + 1) - max(first, column)
            share = shares[span.rank][column]
            share[WAITS] -= covered
            share[letter] = share.get(letter, 0.0) + covered
    return [_line(f"{rank:>{label}} ", row) for rank, row in enumerate(shares)]


def _line(label: str, row: list[dict[str, float]]) -> "Text":
    from rich.text import Text

    text = Text(label, style="dim", no_wrap=True)
    for share in row:
        letter = max(share, key=lambda each: share[each])
        text.append(letter, STYLES[letter.upper()])
    return text
