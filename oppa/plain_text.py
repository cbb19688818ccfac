"""Make text that came from outside safe to print, to draw and to store."""

import unicodedata

_UNSAFE, _REPLACEMENT = ("Cc", "Cs"), "\ufffd"
"""Unicode's categories of control characters and of surrogates, and what replaces them."""
_REORDERS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
"""Unicode's bidirectional classes of invisible characters, with which a text reads unlike its characters ("Trojan Source")."""
MOST_SHOWN = 200
"""Most characters of a value in a message."""


def one_line(text: str) -> str:
    """Return text as one line that a comment of a generated file can hold, without control characters of any kind."""
    return "".join(each if each.isprintable() else _REPLACEMENT for each in text)


def plain_text(text: str, *, limit: int | None = None) -> str:
    """Return text without control characters, such as a terminal's escapes, lone surrogates, and characters that reorder others.

    Lines and tabs stay.

    Args:
        limit: Most characters, beyond which the middle is left out; None for all.
    """
    if limit is not None and len(text) > limit:
        text = f"{text[: limit // 2]}\n...\n{text[-limit // 2 :]}"
    return "".join(_REPLACEMENT if _is_unsafe(each) else each for each in text)


def _is_unsafe(character: str) -> bool:
    is_control = unicodedata.category(character) in _UNSAFE and character not in "\n\t"
    return is_control or unicodedata.bidirectional(character) in _REORDERS


def clipped(text: str) -> str:
    """Return a text for a message; a long one is cut."""
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
