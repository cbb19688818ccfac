"""Make text that came from outside safe to print, to draw and to store."""


def plain_text(text: str, *, limit: int | None = None) -> str:
    """Return text without control characters, such as a terminal's escapes, and without lone surrogates; lines and tabs stay.

    Args:
        limit: Most characters, beyond which the middle is left out; None for all.
    """
    if limit is not None and len(text) > limit:
        text = f"{text[: limit // 2]}\n...\n{text[-limit // 2 :]}"
    return "".join(each if each.isprintable() or each in "\n\t" else "\N{REPLACEMENT CHARACTER}" for each in text)
