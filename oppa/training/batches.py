"""Bytes of text as tokens: which sequences a step trains on depends on (seed, step) alone, whatever the layout."""

import dataclasses
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from oppa.errors import InputError
from oppa.problem.model import Model

_ENOUGH_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Sequences and, one token ahead, what to predict; both (b, s)."""

    tokens: Tensor
    targets: Tensor

    def to(self, device: torch.device) -> "Batch":
        """The same batch on `device`."""
        return Batch(self.tokens.to(device), self.targets.to(device))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Text to train on, one byte a token."""

    text: Tensor
    seq_len: int
    seed: int

    @classmethod
    def load(cls, folder: str, model: Model, *, seed: int) -> "Corpus":
        """The first few MB of the files under `folder` in the order of their names; empty: of the standard library's sources."""
        if model.vocab < 256:
            raise InputError(f"`vocab = {model.vocab}` cannot hold the 256 bytes of the corpus", hint="use a vocab of at least 256")
        files = Path(folder).rglob("*") if folder else Path(sysconfig.get_path("stdlib")).glob("*.py")
        text = _read(sorted(files))
        if len(text) < model.seq_len + 2:
            raise InputError(
                f"the corpus `{folder}` has {len(text)} bytes, less than a sequence of {model.seq_len}", hint="name a larger folder"
            )
        return cls(text=torch.frombuffer(text, dtype=torch.uint8), seq_len=model.seq_len, seed=seed)

    def batch(self, step: int, sequences: range) -> Batch:
        """The sequences of these numbers in the global batch of `step`."""
        generator = torch.Generator().manual_seed(self.seed << 32 | step)
        # Drawn in sequence: a longer global batch begins with the shorter one's sequences.
        starts = torch.randint(len(self.text) - self.seq_len, (sequences.stop,), generator=generator)[sequences.start :]
        windows = self.text[starts.unsqueeze(1) + torch.arange(self.seq_len + 1)].long()
        return Batch(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())


def _read(files: Iterable[Path]) -> bytearray:
    text = bytearray()
    for file in files:
        if len(text) >= _ENOUGH_BYTES:
            break
        if file.is_file():
            text += file.read_bytes()
    return text
