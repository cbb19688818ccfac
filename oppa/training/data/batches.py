"""Provide batches of text, whose tokens are bytes or come from token files.

The data of a trial's step depends on (seed, step) only, not on the layout. A language model predicts the next token, an encoder the masked
bytes. A run goes through epochs, each of which has every sample once, in a random order of its own. The number of a sample counts from the
start of the run.
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
from oppa.problem.training import Training
from oppa.training.data.text import Text
from oppa.training.data.token_files import token_text
from oppa.training.model.tensor_parallel import IGNORED

MASK = 256
"""Token id of the mask, which hides the bytes that an encoder predicts; ids 0 to 255 are the bytes themselves."""
MASKED = 0.15
"""Share of a sequence that is masked (BERT, Devlin et al. 2019, section 3.1)."""

_EMBEDDED_BYTES = 4 << 20
"""Approximate size of the default corpus, which is taken from the standard library's sources."""


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Holds the inputs and targets of b sequences or images, each of shape (b, ...)."""

    inputs: Tensor
    targets: Tensor

    @property
    def tokens(self) -> Tensor:
        """Return the inputs of a text model, shape (b, s)."""
        return self.inputs

    def to(self, device: torch.device) -> "Batch":
        """Return the same batch on `device`."""
        return Batch(self.inputs.to(device), self.targets.to(device))


class Source(Protocol):
    """Provides training data."""

    @property
    def size(self) -> int | None:
        """Return the number of samples of an epoch; None if the data has no end."""

    def batch(self, step: int, sequences: range) -> Batch:
        """Return these sequences of the global batch of a trial's `step`."""

    def samples(self, numbers: range) -> Batch:
        """Return these samples of a run, whatever the batch sizes."""

    @property
    def held_out(self) -> int:
        """Return the number of samples that are held out from training."""

    def validation(self, numbers: range) -> Batch:
        """Return these held-out samples."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Provides text for a language model; the targets are the inputs shifted by one token."""

    text: Text
    seq_len: int
    seed: int
    held_out: int = 0

    @classmethod
    def load(cls, folder: str, model: Model, *, seed: int, held_out: int = 0) -> "Corpus":
        """Load the bytes of all files under `folder` in name order; without a folder, the first 4 MiB of the standard library's sources.

        Raises:
            InputError: if the vocabulary is smaller than 256, a file cannot be read, the text is shorter than a sequence, or `held_out`
                leaves less than half of the samples.
        """
        if model.vocab < 256:
            raise InputError(f"`vocab = {model.vocab}` cannot hold the 256 bytes of the corpus", hint="use a vocab of at least 256")
        text = Text.of_bytes(sorted(Path(folder).rglob("*")) if folder else _embedded())
        return cls.of(text, model, f"the corpus `{folder}` has {len(text)} bytes", seed=seed, held_out=held_out)

    @classmethod
    def of_tokens(cls, training: Training, model: Model, *, held_out: int = 0) -> "Corpus":
        """Load the token files of a job.

        Raises:
            InputError: as `token_text`; if the model is no causal language model, the text is shorter than a sequence, or `held_out` leaves
                less than half of the samples.
            EnvironmentLackingError: as `token_text`.
        """
        if not model.causal or model.patch:
            raise InputError("token files are for causal language models: the token of a mask is unknown", hint="leave out `tokens`")
        text = token_text(training.tokens, vocab=model.vocab, dtype=training.token_dtype)
        return cls.of(text, model, f"`tokens = {training.tokens}` has {len(text)} tokens", seed=training.seed, held_out=held_out)

    @classmethod
    def of(cls, text: Text, model: Model, size: str, *, seed: int, held_out: int) -> "Corpus":
        """Return a text as the data of a model; `size` describes its length in an error."""
        if len(text) < model.seq_len + 2:
            raise InputError(f"{size}, less than a sequence of {model.seq_len}", hint="use more data, or a smaller `seq_len`")
        corpus = cls(text=text, seq_len=model.seq_len, seed=seed, held_out=held_out)
        require_left(corpus.size, held_out)
        return corpus

    @property
    def size(self) -> int:
        """Return the number of non-overlapping windows of the text, without those that are held out."""
        return (len(self.text) - 1) // self.seq_len - self.held_out

    def batch(self, step: int, sequences: range) -> Batch:
        """Return these sequences of the global batch of `step`; each starts at a random position of the text."""
        return self._windows(drawn(len(self.text) - self.seq_len, sequences, seed=self.seed, step=step))

    def samples(self, numbers: range) -> Batch:
        """Return these samples of a run; each is one of the non-overlapping windows."""
        return self._windows(among_all(in_order(self.size, numbers, seed=self.seed), self.size, self.held_out) * self.seq_len)

    def validation(self, numbers: range) -> Batch:
        """Return these held-out windows."""
        return self._windows(held_out_among(self.size, self.held_out)[numbers.start : numbers.stop] * self.seq_len)

    def _windows(self, starts: Tensor) -> Batch:
        windows = self.text.windows(starts, self.seq_len + 1)
        return Batch(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())


@dataclasses.dataclass(frozen=True, slots=True)
class Masked:
    """Provides text for an encoder: some bytes of each sequence are masked, and only these are predicted.

    Every sequence has the same number of masked bytes, so that the mean over micro-batches is the mean over all masked bytes.
    """

    corpus: Corpus

    @classmethod
    def load(cls, folder: str, model: Model, *, seed: int, held_out: int = 0) -> "Masked":
        """Load the text like `Corpus.load`; also raises InputError if the vocabulary has no token for the mask."""
        if model.vocab <= MASK:
            raise InputError(f"`vocab = {model.vocab}` has no token for the mask of an encoder", hint=f"use a vocab of at least {MASK + 1}")
        return cls(Corpus.load(folder, model, seed=seed, held_out=held_out))

    @property
    def size(self) -> int:
        """Return the number of samples of an epoch."""
        return self.corpus.size

    @property
    def held_out(self) -> int:
        """Return the number of samples that are held out from training."""
        return self.corpus.held_out

    def batch(self, step: int, sequences: range) -> Batch:
        """Return these sequences of the global batch of `step`."""
        return self._masked(self.corpus.batch(step, sequences), [f"{step}/{sequence}" for sequence in sequences])

    def samples(self, numbers: range) -> Batch:
        """Return these samples of a run; each epoch masks other bytes."""
        return self._masked(self.corpus.samples(numbers), [f"sample {number}" for number in numbers])

    def validation(self, numbers: range) -> Batch:
        """Return these held-out windows; their masks are always the same."""
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
    """Draw a number below `choices` for each of these sequences of a step's global batch, shape (sequences,)."""
    # The generator keeps 32 bits of its seed. The draws of one seed reappear under another seed only after a million steps.
    generator = torch.Generator().manual_seed((step + 1_000_003 * seed) % 2**32)
    # Drawn in order, so that a larger global batch begins with the sequences of a smaller one.
    return torch.randint(choices, (sequences.stop,), generator=generator)[sequences.start :]


def in_order(size: int, numbers: range, *, seed: int) -> Tensor:
    """Map sample numbers of a run to indices below `size`, the samples of an epoch; each epoch is shuffled anew."""
    wanted = torch.arange(numbers.start, numbers.stop)
    epochs = wanted // size
    return torch.cat([_shuffled(size, seed, epoch)[wanted[epochs == epoch] % size] for epoch in epochs.unique().tolist()])


def require_left(size: int, held_out: int) -> None:
    """Raise InputError if fewer samples are left for training than are held out."""
    if size < held_out:
        hint = f"use at most {(size + held_out) // 2}"
        raise InputError(f"`validation = {held_out}` of {size + held_out} samples leave less than half to train on", hint=hint)


def held_out_among(size: int, held_out: int) -> Tensor:
    """Return the indices of the held-out samples among all `size + held_out`, evenly spread."""
    return (torch.arange(held_out) * 2 + 1) * (size + held_out) // (2 * max(1, held_out))


def among_all(numbers: Tensor, size: int, held_out: int) -> Tensor:
    """Map indices among the `size` training samples to indices among all `size + held_out` samples."""
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
