"""Images to train a ViT on: scikit-learn's handwritten digits, 1,797 of 8 x 8 grey pixels, which come with the package.

They are enlarged to what the model takes; which ones a step trains on depends on (seed, step) alone.
"""

import dataclasses
import importlib.util
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from oppa.errors import EnvironmentLackingError, InputError
from oppa.problem.model import Model
from oppa.training.batches import Batch, among_all, drawn, held_out_among, in_order, require_left

CLASSES = 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """Grey images (n, 1, 8, 8) between -1 and 1, and the digit that each shows (n,)."""

    images: Tensor
    digits: Tensor
    side: int
    """Pixels that the model takes, each way."""
    seed: int
    held_out: int = 0

    @classmethod
    def load(cls, model: Model, *, seed: int, held_out: int = 0) -> "Digits":
        """All digits, for one model.

        Raises:
            InputError: if the model has fewer classes than there are digits.
            EnvironmentLackingError: without scikit-learn.
        """
        if model.vocab < CLASSES:
            raise InputError(f"`vocab = {model.vocab}` classes are fewer than the {CLASSES} digits", hint=f"use at least {CLASSES}")
        table = torch.from_numpy(np.loadtxt(_file(), delimiter=",", dtype=np.int64))
        images = table[:, :-1].float().view(-1, 1, 8, 8) / 8 - 1
        require_left(len(table) - held_out, held_out)
        return cls(images=images, digits=table[:, -1].clone(), side=side_of(model), seed=seed, held_out=held_out)

    @property
    def size(self) -> int:
        """Of all digits, but for those that are held out."""
        return len(self.digits) - self.held_out

    def batch(self, step: int, sequences: range) -> Batch:
        """The images of these numbers in the global batch of `step`, (b, 3, side, side), and their digits, (b,)."""
        return self._batch(drawn(len(self.digits), sequences, seed=self.seed, step=step))

    def samples(self, numbers: range) -> Batch:
        """The images of these numbers of a run, and their digits."""
        return self._batch(among_all(in_order(self.size, numbers, seed=self.seed), self.size, self.held_out))

    def validation(self, numbers: range) -> Batch:
        """Images that are held out."""
        return self._batch(held_out_among(self.size, self.held_out)[numbers.start : numbers.stop])

    def _batch(self, chosen: Tensor) -> Batch:
        enlarged = F.interpolate(self.images[chosen], (self.side, self.side), mode="bilinear")
        return Batch(enlarged.expand(-1, 3, -1, -1).contiguous(), self.digits[chosen])


def _file() -> Path:
    """Where the package has its digits; to import it would take each rank of a trial seconds, and start threads."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise EnvironmentLackingError("a ViT is trained on scikit-learn's digits", hint="pip install scikit-learn")
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"


def side_of(model: Model) -> int:
    """Pixels of an image each way: of patches, and one token for the class."""
    return model.patch * math.isqrt(model.seq_len - 1)
