"""Provide images to train a ViT on: scikit-learn's 1,797 handwritten digits of 8 x 8 grey pixels, which the package contains.

They are enlarged to the model's image size. The images of a trial's step depend on (seed, step) only.
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
from oppa.training.data.batches import Batch, among_all, drawn, held_out_among, in_order, require_left

CLASSES = 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """Provides grey images between -1 and 1, shape (n, 1, 8, 8), and their digits, shape (n,)."""

    images: Tensor
    digits: Tensor
    side: int
    """Height and width of the model's images, in pixels."""
    seed: int
    held_out: int = 0

    @classmethod
    def load(cls, model: Model, *, seed: int, held_out: int = 0) -> "Digits":
        """Load all digits for a model.

        Raises:
            InputError: if the model has fewer classes than there are digits, or `held_out` leaves less than half of the images.
            EnvironmentLackingError: if scikit-learn is not installed.
        """
        if model.vocab < CLASSES:
            raise InputError(f"`vocab = {model.vocab}` classes are fewer than the {CLASSES} digits", hint=f"use at least {CLASSES}")
        table = torch.from_numpy(np.loadtxt(_file(), delimiter=",", dtype=np.int64))
        images = table[:, :-1].float().view(-1, 1, 8, 8) / 8 - 1
        require_left(len(table) - held_out, held_out)
        return cls(images=images, digits=table[:, -1].clone(), side=side_of(model), seed=seed, held_out=held_out)

    @property
    def size(self) -> int:
        """Return the number of images that are not held out."""
        return len(self.digits) - self.held_out

    def batch(self, step: int, sequences: range) -> Batch:
        """Return these images of the global batch of `step`, shape (b, 3, side, side), and their digits, shape (b,)."""
        return self._batch(drawn(len(self.digits), sequences, seed=self.seed, step=step))

    def samples(self, numbers: range) -> Batch:
        """Return these images of a run, and their digits."""
        return self._batch(among_all(in_order(self.size, numbers, seed=self.seed), self.size, self.held_out))

    def validation(self, numbers: range) -> Batch:
        """Return these held-out images, and their digits."""
        return self._batch(held_out_among(self.size, self.held_out)[numbers.start : numbers.stop])

    def _batch(self, chosen: Tensor) -> Batch:
        enlarged = F.interpolate(self.images[chosen], (self.side, self.side), mode="bilinear")
        return Batch(enlarged.expand(-1, 3, -1, -1).contiguous(), self.digits[chosen])


def _file() -> Path:
    """Return the package's file of digits without an import, which would take each rank of a trial seconds and start threads."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise EnvironmentLackingError(
            "a ViT needs scikit-learn's digits, which are not installed", hint="install them: `pip install scikit-learn`"
        )
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"


def side_of(model: Model) -> int:
    """Return an image's height and width in pixels: all tokens but the class token are patches of a square."""
    return model.patch * math.isqrt(model.seq_len - 1)
