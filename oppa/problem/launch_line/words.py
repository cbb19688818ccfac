"""Define a word of a launch line, each piece of which has the place where it was written.

origin    `line` for the user's own words, `run.sh:12` for a script, `environment` for a variable of oppa's environment
missing   what a piece needs and nothing states, such as `$SLURM_NNODES` or `$(hostname)`; the piece keeps this as its text
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Self

from oppa.plain_text import clipped

LINE = "line"
"""Origin of what the user typed."""
ENVIRONMENT = "environment"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WordPiece:
    """Holds a part of a word with one origin."""

    text: str
    origin: str
    missing: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """Holds a word of a launch line."""

    pieces: tuple[WordPiece, ...]

    @property
    def text(self) -> str:
        """Return the word as the program receives it; what is missing stands as the script has it."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def origin(self) -> str:
        """Return the origin of its last piece: of `--layers=$LAYERS`, the place that sets the variable."""
        return self.pieces[-1].origin if self.pieces else LINE

    @property
    def missing(self) -> tuple[str, ...]:
        """Return what nothing states, such as `$SLURM_NNODES`."""
        return tuple(piece.text for piece in self.pieces if piece.missing)

    def after(self, count: int) -> Self:
        """Return the word without its first `count` characters."""
        kept = []
        for piece in self.pieces:
            if len(piece.text) > count:
                kept.append(dataclasses.replace(piece, text=piece.text[count:]))
            count = max(0, count - len(piece.text))
        return dataclasses.replace(self, pieces=tuple(kept))

    @property
    def is_typed(self) -> bool:
        """Return whether the user typed the whole word."""
        return all(piece.origin == LINE for piece in self.pieces)


def word(text: str, origin: str = LINE) -> Word:
    """Return a word of one piece."""
    return Word(pieces=(WordPiece(text=text, origin=origin),))


def typed(words: Iterable[str]) -> tuple[Word, ...]:
    """Return the words that a user typed."""
    return tuple(map(word, words))


def texts(words: Sequence[Word]) -> list[str]:
    """Return the texts of words."""
    return [each.text for each in words]


def first_words(words: Sequence[Word]) -> str:
    """Return the first words of a command, short enough for an error."""
    return clipped(" ".join(texts(words)[:4]))
