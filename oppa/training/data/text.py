"""Present the tokens of many files as one text; files are memory-mapped, so that a text may be larger than memory."""

import bisect
import dataclasses
import functools
import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oppa.errors import InputError

Array = np.ndarray[tuple[int], np.dtype[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Stretch:
    """Locates consecutive tokens in a file: `length` tokens of a numpy type, from byte `offset` on."""

    file: Path
    length: int
    dtype: str = "uint8"
    offset: int = 0

    def tokens(self, start: int, stop: int) -> Array:
        """Return the tokens from number `start` up to `stop`, as a view of the mapped file."""
        size = np.dtype(self.dtype).itemsize
        content: Array = _mapped(self.file)[self.offset + start * size : self.offset + stop * size].view(self.dtype)
        return content


class Text:
    """Concatenates the tokens of stretches of files.

    Args:
        stretches: Stretches in order; empty ones are left out.
        vocab: Number that all tokens must be below; None: bytes, which are not checked.

    Raises:
        InputError: if a file cannot be read.
    """

    def __init__(self, stretches: Iterable[Stretch], vocab: int | None = None) -> None:
        self._stretches = [stretch for stretch in stretches if stretch.length]
        self._ends = list(itertools.accumulate(stretch.length for stretch in self._stretches))
        self._vocab = vocab
        for file in {stretch.file: None for stretch in self._stretches}:
            if not os.access(file, os.R_OK):
                raise InputError(f"the data has a file that cannot be read: `{file}`", hint="make it readable, or move it out of the data")

    @classmethod
    def of_bytes(cls, files: Iterable[Path]) -> "Text":
        """Return the bytes of files as a text; raises InputError if a file cannot be read."""
        return cls(Stretch(file, file.stat().st_size) for file in files if file.is_file())

    def __len__(self) -> int:
        """Return the number of tokens."""
        return self._ends[-1] if self._ends else 0

    def windows(self, starts: Tensor, length: int) -> Tensor:
        """Return `length` tokens from each start, shape (starts, length), as int64; a window may span files.

        Raises:
            InputError: if a token is not in the vocabulary; it names the token, its file and its position there.
        """
        return torch.from_numpy(np.stack([self._window(start, length) for start in starts.tolist()]).astype(np.int64))

    def check(self, count: int) -> None:
        """Raise InputError if one of the first `count` tokens is not in the vocabulary."""
        if length := min(count, len(self)):
            self._window(0, length)

    def _window(self, start: int, length: int) -> Array:
        pieces, number = list[Array](), bisect.bisect_right(self._ends, start)
        while length > 0:
            stretch = self._stretches[number]
            begin = start - (self._ends[number] - stretch.length)
            piece = stretch.tokens(begin, min(begin + length, stretch.length))
            if self._vocab is not None:
                _require_known(piece, self._vocab, stretch, begin)
            pieces.append(piece)
            start, length, number = start + len(piece), length - len(piece), number + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _require_known(piece: Array, vocab: int, stretch: Stretch, begin: int) -> None:
    """Raise InputError if a token of a stretch, from its token number `begin` on, is not in the vocabulary."""
    if len(piece) and (int(piece.max()) >= vocab or int(piece.min()) < 0):
        at = int(np.flatnonzero((piece >= vocab) | (piece < 0))[0])
        byte = stretch.offset + (begin + at) * piece.itemsize
        raise InputError(
            f"`{stretch.file}` has the token {int(piece[at])} at byte {byte}, but `vocab = {vocab}`",
            hint=f"set the `vocab` of its tokenizer; the tokens were read as {stretch.dtype}",
        )


@functools.lru_cache(maxsize=1024)  # far below the kernel's limit of mappings
def _mapped(file: Path) -> Array:
    return np.asarray(np.memmap(file, dtype=np.uint8, mode="r"))  # a plain array, because slices of a memmap cost ten times as much
