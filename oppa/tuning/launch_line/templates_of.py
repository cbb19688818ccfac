"""Write the words of a launch line as the templates of a job: braces are literal, unless the user typed a placeholder."""

import re
from collections.abc import Iterable, Sequence

from oppa.problem.declaration import spell
from oppa.problem.launch_line.words import Word
from oppa.problem.templates import literal

PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)(?:=[^{}]*)?\}")
"""A placeholder that a user types, with its name; its choices may follow: `{micro_batch=2:1,2,4}`."""


def template(word: Word) -> str:
    """Return a word as a template: braces that the user typed around a name are a placeholder, all others are literal."""
    text = word.text
    if word.is_typed and re.search(r"[{}]", text) and not re.search(r"[{}]", PLACEHOLDER.sub("", text)):
        return text
    return literal(text)


def templates(words: Iterable[Word]) -> list[str]:
    """Return words as templates."""
    return [template(each) for each in words]


def with_copy(words: Iterable[str], file: str, name: str) -> list[str]:
    """Return templates in which the placeholder of a copy takes the place of a file."""
    ends = (literal(file), f"={literal(file)}")
    return [f"{each.removesuffix(ends[0])}{{{name}}}" if each == ends[0] or each.endswith(ends[1]) else each for each in words]


def one_option_a_line(words: Sequence[str]) -> str:
    """Return templates as a list of TOML, each option and its values on one line."""
    lines: list[list[str]] = [[]]
    for each in words:
        if re.match(r"--?[A-Za-z]", each) and lines[-1]:
            lines.append([])
        lines[-1].append(spell(each))
    return "[\n" + "".join(f"    {', '.join(line)},\n" for line in lines) + "]"


def placeholders(text: str) -> set[str]:
    """Return the names of the placeholders of a template, with choices or without."""
    return set(PLACEHOLDER.findall(text.replace("{{", "").replace("}}", "")))


def names_placeholders(words: Iterable[Word]) -> bool:
    """Return whether the user typed a placeholder in one of the words."""
    return any(placeholders(template(each)) for each in words)
