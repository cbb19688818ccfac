"""Read the text of a pipeline layout in Megatron-LM's notation: a letter for each part, and `|` between stages, as in `Et|t*3|tL`."""

import re

from oppa.errors import InputError

_MOST = 10_000
"""Largest number of characters of a text with its repetitions expanded."""
_REPEATED = re.compile(r"(?:\(([^()]*)\)|([EtmL|]))(?:\*(\d{1,4}))?")


def expanded(text: str) -> str:
    """Return a text without spaces and commas, its repetitions expanded: `t*3` is `ttt`, and `(t|)*3` is `t|t|t|`.

    Raises:
        InputError: the text cannot be parsed.
    """
    left = re.sub(r"[\s,]", "", text)
    while "(" in left or "*" in left:
        longer = _REPEATED.sub(lambda found: (found[1] if found[1] is not None else found[2]) * int(found[3] or 1), left)
        if longer == left or len(longer) > _MOST:
            raise InputError(f"`{text[:100]}` is no layout of pipeline stages", hint="write the parts of each stage, such as `Et|tt|tL`")
        left = longer
    return left


def stage_count(text: str) -> int:
    """Return the number of stages of a layout; raises InputError as `expanded` does."""
    return expanded(text).count("|") + 1
