"""Present the bytes of many files as one text; files are memory-mapped, so that a corpus may be larger than memory."""

import bisect
import functools
import itertools
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from oppa.errors import InputError

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


class Text:
    """The concatenated bytes of files.

    Raises:
        InputError: if a file cannot be read.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        sizes = {file: file.stat().st_size for file in files if file.is_file()}
        self._files = [file for file, size in sizes.items() if size]
        self._ends = list(itertools.accumulate(sizes[file] for file in self._files))
        for file in self._files:
            if not os.access(file, os.R_OK):
                raise InputError(
                    f"the corpus has a file that cannot be read: `{file}`", hint="make it readable, or move it out of the corpus"
                )

    def __len__(self) -> int:
        """Return the number of bytes."""
        return self._ends[-1] if self._ends else 0

    def windows(self, starts: Tensor, length: int) -> Tensor:
        """Return `length` bytes from each start, shape (starts, length), as int64; a window may span files."""
        return torch.from_numpy(np.stack([self._window(start, length) for start in starts.tolist()]).astype(np.int64))

    def _window(self, start: int, length: int) -> Bytes:
        pieces, number = list[Bytes](), bisect.bisect_right(self._ends, start)
        while length > 0:
            content = _mapped(self._files[number])
            offset = start - (self._ends[number] - len(content))
            pieces.append(content[offset : offset + length])
            start, length, number = start + len(pieces[-1]), length - len(pieces[-1]), number + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


@functools.lru_cache(maxsize=1024)  # far below the kernel's limit of mappings
def _mapped(file: Path) -> Bytes:
    return np.asarray(np.memmap(file, dtype=np.uint8, mode="r"))  # a plain array, because slices of a memmap cost ten times as much
