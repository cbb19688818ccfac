"""Expand `~`, braces such as `{a,b}` and patterns of file names in a word of a script, and values such as `${A%.*}` and `${A[-1]}`."""

import dataclasses
import glob
import re
from collections.abc import Sequence
from pathlib import Path

from oppa.problem.bounded_text import whole_number
from oppa.problem.launch_line.shell_syntax import Expansion, LiteralText, Parts
from oppa.problem.launch_line.words import Word, WordPiece

MOST_WORDS = 1000
"""Most words that braces make of one."""
_HOME = re.compile(r"~([^/]*)")
_BRACES = re.compile(r"\{(?![A-Za-z_]\w*[=}])([^{}\s]*)\}")
"""Braces that are none of oppa's placeholders, such as `{micro_batch}` and `{workers=1:1,2}`."""
_RANGE = re.compile(r"(-?[0-9]+)\.\.(-?[0-9]+)")
_LETTERS = re.compile(r"([a-z])\.\.([a-z])")
WILDCARD = re.compile(r"[*?\[]")


def with_home(parts: Parts) -> Parts:
    """Return a word whose first `~` is the variable HOME, or is unknown, as that of another user is."""
    first = parts[0] if parts else None
    if not isinstance(first, LiteralText) or first.quoted or not (match := _HOME.match(first.text)):
        return parts
    if match.end() == len(first.text) and len(parts) > 1:  # quotes or an expansion follow, before any slash
        return parts
    home = Expansion(source=match[0], kind="variable", body=match[0] if match[1] else "HOME", line=first.line, quoted=True)
    rest = dataclasses.replace(first, text=first.text[match.end() :])
    return (home, *((rest,) if rest.text else ()), *parts[1:])


def without_home(parts: Parts) -> Parts:
    """Return the word of which `with_home` made these parts, as between double quotes."""
    first = parts[0] if parts else None
    if not isinstance(first, Expansion) or not first.source.startswith("~"):
        return parts
    return (LiteralText(text=first.source, line=first.line, quoted=True), *parts[1:])


def with_braces(parts: Parts) -> list[Parts]:
    """Return the words that the first unquoted braces of a word make of it, and those of its other braces; nested braces stay."""
    for place, part in enumerate(parts):
        if not isinstance(part, LiteralText) or part.quoted or re.search(r"\{[^{}]*\{", part.text):
            continue
        for match in _BRACES.finditer(part.text):
            if not (choices := _choices(match[1])):
                continue
            before, after = part.text[: match.start()], part.text[match.end() :]
            made = [(*parts[:place], dataclasses.replace(part, text=before + each + after), *parts[place + 1 :]) for each in choices]
            return [word for each in made for word in with_braces(each)][:MOST_WORDS]
    return [parts]


def _choices(text: str) -> list[str]:
    """Return the texts that the inside of braces stands for; none if the shell leaves the braces as they are."""
    if match := _RANGE.fullmatch(text):
        first, last = int(match[1]), int(match[2])
        if abs(last - first) >= MOST_WORDS:
            return []
        width = max(map(len, match.groups())) if any(re.match("-?0[0-9]", each) for each in match.groups()) else 0
        return [f"{number:0{width}d}" for number in _through(first, last)]
    if match := _LETTERS.fullmatch(text):
        return [chr(each) for each in _through(*map(ord, match.groups()))]
    return text.split(",") if "," in text else []


def _through(first: int, last: int) -> range:
    """Return the numbers from the first to the last, which may be less."""
    return range(first, last + 1) if last >= first else range(first, last - 1, -1)


def with_files(parts: Parts, words: Sequence[Word], folder: Path) -> list[Word]:
    """Return the words of a part of a script, of which those that are patterns are the files that match.

    Args:
        parts: The part before its expansion, whose quotes tell what is no pattern.
        words: The words that it expands to.
        folder: The folder of the shell.
    """
    if not any(isinstance(part, Expansion) or WILDCARD.search(part.text) for part in parts if not part.quoted):
        return list(words)
    found: list[Word] = []
    for word in words:
        is_pattern = WILDCARD.search(word.text) and not word.missing
        names = sorted(glob.glob(word.text, root_dir=folder)) if is_pattern else []  # noqa: PTH207 - it may be absolute
        found += [Word(pieces=(WordPiece(text=name, origin=word.origin),)) for name in names] or [word]
    return found


def trimmed(value: list[WordPiece] | None, how: str, rest: str) -> list[WordPiece]:
    """Return a value without a prefix or a suffix such as `.*`; nothing for other patterns."""
    if value is None or len(value) != 1 or value[0].missing:
        return []
    text = value[0].text
    match how, rest:
        case "##", "*/":
            text = text.rpartition("/")[2]
        case "%", "/*":
            text = text.rpartition("/")[0]
        case (("#" | "##"), _) if not re.search(r"[*?\[$]", rest):
            text = text.removeprefix(rest)
        case (("%" | "%%"), _) if not re.search(r"[*?\[$]", rest):
            text = text.removesuffix(rest)
        case _:
            return []
    return [dataclasses.replace(value[0], text=text)]


def at_index(words: Sequence[Word], index: str) -> list[WordPiece]:
    """Return the element of an array at `[2]` or `[-1]`; the first without an index, and nothing outside the array."""
    text = index.strip("[]")
    at = whole_number(text.removeprefix("-")) if text else 0
    if at is None:
        return []
    at = len(words) - at if text.startswith("-") else at
    return list(words[at].pieces) if 0 <= at < len(words) else []
