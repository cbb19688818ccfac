"""Decide tests such as `[ -n "$A" ]` and the patterns of `case`, where a script's own values decide them."""

import operator
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from oppa.problem.bounded_text import whole_number
from oppa.problem.launch_line.shell_expansions import WILDCARD
from oppa.problem.launch_line.words import Word, WordPiece
from oppa.regular_file import exists, is_file, is_folder

SET_LATER = re.compile(
    r"(SLURM|SLURMD|SRUN|PMI|PMIX|PBS|LSB|OMPI|MPI|FLUX|PALS|KUBERNETES|VC|PET|CUDA)_\w+|(LOCAL_|NODE_|GROUP_)?RANK|HOSTNAME|RANDOM"
    r"|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT)|NNODES|NODELIST|PIPESTATUS|SECONDS|EPOCHREALTIME"
)
"""Variables that a scheduler, a launcher or the shell sets, so that one without a value here may have one there."""
SUCCEEDS = frozenset(["export", "echo", ":", "set", "cd", "pushd", "source", ".", "module"])
"""Commands that are taken to succeed: without their success a script has no values to follow."""
_COMPARED = {"-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt, "-ge": operator.ge}


def condition_holds(words: Sequence[Word], folder: Path) -> bool | None:
    """Return whether a test such as `[ -n "$A" ]` holds; None if that depends on something unknown.

    A variable that is set nowhere is empty, as in the shell, unless a scheduler may set it. Files are those that `folder` has.
    """
    given = ["".join(_tested(piece) or "" for piece in each.pieces) for each in words]
    if not given or any(_tested(piece) is None for each in words for piece in each.pieces):
        return None
    if given[0] in ("[", "[["):
        given = given[1:-1] if given[-1] in ("]", "]]") else given[1:]
    elif given[0] == "test":
        given = given[1:]
    elif len(given) == 1:
        return {"true": True, ":": True, "false": False}.get(given[0])
    else:
        return None
    negated = given[:1] == ["!"]
    found = _holds(given[1:] if negated else given, folder)
    return found if found is None else found != negated


def _tested(piece: WordPiece) -> str | None:
    """Return the text of a piece in a test; None if it is unknown."""
    if not piece.missing:
        return piece.text
    named = re.fullmatch(r"\$\{?([A-Za-z_]\w*)\}?", piece.text)
    return "" if named and not SET_LATER.fullmatch(named[1]) else None


def _holds(test: Sequence[str], folder: Path) -> bool | None:
    match list(test):
        case ["-z", text]:
            return not text
        case ["-n", text] | [text]:
            return bool(text)
        case ["-f", path]:
            return is_file(folder / path) or None  # a file that is not here may be on the cluster
        case ["-d", path]:
            return is_folder(folder / path) or None
        case ["-e", path]:
            return exists(folder / path) or None
        case [left, ("=" | "=="), right]:
            return None if WILDCARD.search(right) else left == right
        case [left, "!=", right]:
            return None if WILDCARD.search(right) else left != right
        case [left, ("-eq" | "-ne" | "-lt" | "-le" | "-gt" | "-ge") as how, right]:
            first, second = whole_number(left), whole_number(right)
            if first is None or second is None:
                return None
            return bool(_COMPARED[how](first, second))
        case _:
            return None


def matches_pattern(text: str, patterns: Iterable[str]) -> bool | None:
    """Return whether a text matches a pattern of a `case`; None if a pattern is more than text, `*`, or a prefix with `*`."""
    for pattern in patterns:
        prefix = pattern.removesuffix("*")
        is_plain = not WILDCARD.search(prefix)
        if pattern == text or (prefix != pattern and is_plain and text.startswith(prefix)):
            return True
        if not is_plain:
            return None
    return False


def joined(before: bool | None, joint: str, result: bool | None) -> bool | None:
    """Return the truth of two tests that `&&`, `||` or nothing joins."""
    if joint == "&&":
        return False if before is False or result is False else None if before is None or result is None else True
    if joint == "||":
        return True if before is True or result is True else None if before is None or result is None else False
    return result
