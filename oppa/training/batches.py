"""What a trial's step trains on depends on (seed, step) alone, whatever the layout: bytes of text as tokens.

A language model predicts the next byte, an encoder the ones that are masked. A run, which is more than its first steps, goes through
epochs: each has every sample once, in an order of its own, and a sample is known by its number from the start of the run on.
"""

import dataclasses
import functools
import sysconfig
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from oppa.errors import InputError
from oppa.problem.model import Model
from oppa.training.tensor_parallel import IGNORED
from oppa.training.text import Text

MASK = 256
"""The token behind the 256 bytes that stands for what an encoder has to predict."""
MASKED = 0.15
"""Share of a sequence that is masked (BERT, Devlin et al. 2019, section 3.1)."""

_EMBEDDED_BYTES = 4 << 20
"""How much of the standard library's sources is enough: about so much."""


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """What a model is shown and what it is to predict, sequence by sequence or image by image: (b, ...) each."""

    inputs: Tensor
    targets: Tensor

    @property
    def tokens(self) -> Tensor:
        """The inputs of a model that reads text (b, s)."""
        return self.inputs

    def to(self, device: torch.device) -> "Batch":
        """The same batch on `device`."""
        return Batch(self.inputs.to(device), self.targets.to(device))


class Source(Protocol):
    """What to train on."""

    @property
    def size(self) -> int | None:
        """Samples of an epoch; None where there are always new ones."""
        ...

    def batch(self, step: int, sequences: range) -> Batch:
        """The sequences of these numbers in the global batch of a trial's `step`."""
        ...

    def samples(self, numbers: range) -> Batch:
        """The samples of these numbers of a run, whatever the batches that they come in."""
        ...

    @property
    def held_out(self) -> int:
        """Samples that a run never sees."""
        ...

    def validation(self, numbers: range) -> Batch:
        """These of them."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Text to train on, one byte a token; what to predict is one token ahead."""

    text: Text
    seq_len: int
    seed: int
    held_out: int = 0

    @classmethod
    def load(cls, folder: str, model: Model, *, seed: int, held_out: int = 0) -> "Corpus":
        """Load all files under `folder` in the order of their names; if it is empty, the first 4 MiB of the standard library's sources."""
        if model.vocab < 256:
            raise InputError(f"`vocab = {model.vocab}` cannot hold the 256 bytes of the corpus", hint="use a vocab of at least 256")
        text = Text(sorted(Path(folder).rglob("*")) if folder else _embedded())
        if len(text) < model.seq_len + 2:
            raise InputError(
                f"the corpus `{folder}` has {len(text)} bytes, less than a sequence of {model.seq_len}", hint="name a larger folder"
            )
        corpus = cls(text=text, seq_len=model.seq_len, seed=seed, held_out=held_out)
        require_left(corpus.size, held_out)
        return corpus

    @property
    def size(self) -> int:
        """Windows of the text that do not overlap, but for those that are held out."""
        return (len(self.text) - 1) // self.seq_len - self.held_out

    def batch(self, step: int, sequences: range) -> Batch:
        """The sequences of these numbers in the global batch of `step`, from anywhere in the text."""
        return self._windows(drawn(len(self.text) - self.seq_len, sequences, seed=self.seed, step=step))

    def samples(self, numbers: range) -> Batch:
        """The windows of these numbers of a run."""
        return self._windows(among_all(in_order(self.size, numbers, seed=self.seed), self.size, self.held_out) * self.seq_len)

    def validation(self, numbers: range) -> Batch:
        """Windows that are held out."""
        return self._windows(held_out_among(self.size, self.held_out)[numbers.start : numbers.stop] * self.seq_len)

    def _windows(self, starts: Tensor) -> Batch:
        windows = self.text.windows(starts, self.seq_len + 1)
        return Batch(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())


@dataclasses.dataclass(frozen=True, slots=True)
class Masked:
    """The same text for an encoder: of each sequence some bytes are masked, and only these are predicted.

    As many in every sequence, so that a mean over micro-batches is the mean over all of them.
    """

    corpus: Corpus

    @classmethod
    def load(cls, folder: str, model: Model, *, seed: int, held_out: int = 0) -> "Masked":
        """As `Corpus.load`; raises InputError too for a vocabulary without a token for the mask."""
        if model.vocab <= MASK:
            raise InputError(f"`vocab = {model.vocab}` has no token for the mask of an encoder", hint=f"use a vocab of at least {MASK + 1}")
        return cls(Corpus.load(folder, model, seed=seed, held_out=held_out))

    @property
    def size(self) -> int:
        """As many as the text has."""
        return self.corpus.size

    @property
    def held_out(self) -> int:
        """As many as of the text."""
        return self.corpus.held_out

    def batch(self, step: int, sequences: range) -> Batch:
        """The sequences of these numbers in the global batch of `step`."""
        return self._masked(self.corpus.batch(step, sequences), [f"{step}/{sequence}" for sequence in sequences])

    def samples(self, numbers: range) -> Batch:
        """The samples of these numbers of a run; other bytes are masked in each epoch."""
        return self._masked(self.corpus.samples(numbers), [f"sample {number}" for number in numbers])

    def validation(self, numbers: range) -> Batch:
        """Windows that are held out, always masked alike."""
        return self._masked(self.corpus.validation(numbers), [f"held out {number}" for number in numbers])

    def _masked(self, text: Batch, names: Iterable[str]) -> Batch:
        masked = torch.zeros_like(text.inputs, dtype=torch.bool)
        for row, name in zip(masked, names, strict=True):
            row[self._places(name)] = True
        return Batch(text.inputs.masked_fill(masked, MASK), text.inputs.masked_fill(~masked, IGNORED))

    def _places(self, name: str) -> Tensor:
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.corpus.seed}/{name}".encode()))
        return torch.randperm(self.corpus.seq_len, generator=generator)[: max(1, round(MASKED * self.corpus.seq_len))]


def drawn(choices: int, sequences: range, *, seed: int, step: int) -> Tensor:
    """A number below `choices` for each of these sequences of a step's global batch."""
    # The generator keeps 32 bits of its seed: one seed's steps meet another's only behind a million.
    generator = torch.Generator().manual_seed((step + 1_000_003 * seed) % 2**32)
    # Drawn in sequence: a longer global batch begins with the shorter one's sequences.
    return torch.randint(choices, (sequences.stop,), generator=generator)[sequences.start :]


def in_order(size: int, numbers: range, *, seed: int) -> Tensor:
    """Which of `size` samples of an epoch these numbers of a run are; each epoch is shuffled anew."""
    wanted = torch.arange(numbers.start, numbers.stop)
    epochs = wanted // size
    return torch.cat([_shuffled(size, seed, epoch)[wanted[epochs == epoch] % size] for epoch in epochs.unique().tolist()])


def require_left(size: int, held_out: int) -> None:
    """Raise InputError where so many held-out samples leave too few to train on."""
    if size < held_out:
        hint = f"use at most {(size + held_out) // 2}"
        raise InputError(f"`validation = {held_out}` of {size + held_out} samples leave less than half to train on", hint=hint)


def held_out_among(size: int, held_out: int) -> Tensor:
    """The numbers of held-out samples among all, spread evenly over them; `size` are left."""
    return (torch.arange(held_out) * 2 + 1) * (size + held_out) // (2 * max(1, held_out))


def among_all(numbers: Tensor, size: int, held_out: int) -> Tensor:
    """The numbers among all samples of those with these numbers among the `size` that are not held out."""
    return _kept(size, held_out)[numbers] if held_out else numbers


@functools.lru_cache(maxsize=2)
def _kept(size: int, held_out: int) -> Tensor:
    kept = torch.ones(size + held_out, dtype=torch.bool)
    kept[held_out_among(size, held_out)] = False
    return kept.nonzero().squeeze(1)


@functools.lru_cache(maxsize=2)
def _shuffled(size: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(zlib.crc32(f"{seed}/epoch {epoch}".encode())))


def _embedded() -> Iterator[Path]:
    size = 0
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        if size >= _EMBEDDED_BYTES:
            break
        yield file
        size += file.stat().st_size
