"""Read the choices of parameters that a launch line states in its words: `{num_workers=4:2,4,8}` is now 4, and may be 2, 4 or 8.

A word keeps the plain placeholder, `{num_workers}`.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from oppa.errors import JobError
from oppa.plain_text import clipped
from oppa.problem.configuration import Value, is_name
from oppa.problem.declaration import spell

_INLINE = re.compile(r"(?<!\{)((?:\{\{)*)\{([^{}=:!]*)=([^{}]*)\}")
_FORM = "write `{num_workers=4:2,4,8}`: its name, its present value, and its choices"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InlineChoices:
    """Holds the choices that a launch line states, and the present values."""

    words: tuple[str, ...]
    """The launch line with plain placeholders."""
    choices: Mapping[str, tuple[Value, ...]]
    """Choices of each parameter, the present value among them."""
    present: Mapping[str, Value]


def read_inline_choices(words: Sequence[str]) -> InlineChoices:
    """Return what a launch line states; raises JobError for a placeholder with no choice, or with contradictory ones."""
    choices: dict[str, tuple[Value, ...]] = {}
    present: dict[str, Value] = {}

    def plain(match: re.Match[str]) -> str:
        braces, name, stated = match[1], match[2].strip(), match[0][len(match[1]) :]
        now, given, listed = (part.strip() for part in match[3].partition(":"))
        if not is_name(name):
            raise JobError(f"`{clipped(stated)}`: `{clipped(name)}` cannot be the name of a parameter", hint=_FORM)
        texts = [text.strip() for text in listed.split(",")] if given else []
        if now and not given:
            raise JobError(
                f"`{clipped(stated)}` has one value", hint=f"add its choices, `{{{name}={now}:{now},...}}`, or write `{now}` in its place"
            )
        if not now or not texts or "" in texts:
            raise JobError(f"`{clipped(stated)}` has no choices", hint=_FORM)
        first, *values = _typed([now, *texts])
        if len(set(values)) < len(values):
            raise JobError(f"`{clipped(stated)}` names a choice twice", hint="name each once")
        if set(values) <= {first}:
            raise JobError(f"`{clipped(stated)}` leaves nothing to choose", hint=f"add a choice, or write `{now}` in its place")
        found = tuple(values) if first in values else (first, *values)
        if choices.setdefault(name, found) != found or present.setdefault(name, first) != first:
            raise JobError(f"`{clipped(stated)}` contradicts `{name} = {spell(list(choices[name]))}`", hint="state the choices once")
        return f"{braces}{{{name}}}"

    return InlineChoices(words=tuple(_INLINE.sub(plain, word) for word in words), choices=choices, present=present)


def _typed(texts: Sequence[str]) -> list[Value]:
    """Return the values that texts state, all of one type: true or false, whole numbers, numbers, or the texts themselves.

    `007` stays a text, as a program may mean another thing by `7`.
    """
    if all(text in ("true", "false") for text in texts):
        return [text == "true" for text in texts]
    for kind in (int, float):
        try:
            values = [kind(text) for text in texts]
        except ValueError:
            continue
        return list(values) if kind is float or [str(value) for value in values] == list(texts) else list(texts)
    return list(texts)
