"""Store a learned policy as a file: a small network in safetensors, with its actions, reward, window and provenance."""

import dataclasses
import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from oppa.atomic_write import write_atomically
from oppa.control.rl.actions import Actions
from oppa.control.rl.observation import NAMES
from oppa.control.rl.reward import Reward
from oppa.errors import InputError, reason
from oppa.regular_file import open_regular, parse_json

Array = NDArray[np.float64]
VERSION = 1
CLIP = 5.0
"""Limit of normalised observations, in standard deviations; larger ones did not occur in training."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Weights:
    """Holds a network from one worker's observation to a logit for each action, with tanh between its layers."""

    layers: tuple[tuple[Array, Array], ...]
    """Weight (out, in) and bias (out,) of each layer."""
    mean: Array
    deviation: Array
    """Mean and standard deviation of observations in training, shape (d,) each."""
    actions: Actions
    reward: Reward
    window: int
    """Steps between two decisions."""
    provenance: dict[str, Any]
    """Origin of the weights: command, version, seed, episodes, algorithm, curve."""

    def normalised(self, observations: Array) -> Array:
        """Return observations normalised for the network, shape (n, d)."""
        return np.asarray(np.clip((observations - self.mean) / self.deviation, -CLIP, CLIP))

    def preferences(self, observations: Array) -> Array:
        """Return the logits of each worker's actions, shape (n, actions)."""
        x = self.normalised(observations)
        for weight, bias in self.layers[:-1]:
            x = np.tanh(x @ weight.T + bias)
        weight, bias = self.layers[-1]
        return np.asarray(x @ weight.T + bias)

    def probabilities(self, observations: Array) -> Array:
        """Return the probabilities of each worker's actions, shape (n, actions)."""
        logits = self.preferences(observations)
        powers = np.exp(logits - logits.max(1, keepdims=True))
        return np.asarray(powers / powers.sum(1, keepdims=True))

    def best(self, observations: Array) -> list[int]:
        """Return the number of the most likely action of each worker."""
        return [int(number) for number in self.preferences(observations).argmax(1)]

    def save(self, path: Path) -> None:
        """Write the weights to a file; an existing file is replaced atomically.

        Raises:
            InputError: if the file cannot be written.
        """
        arrays = {"observation.mean": self.mean, "observation.deviation": self.deviation}
        for number, (weight, bias) in enumerate(self.layers):
            arrays |= {f"layers.{number}.weight": weight, f"layers.{number}.bias": bias}
        notes = {
            "version": VERSION,
            "observation": list(NAMES),
            "actions": dataclasses.asdict(self.actions),
            "reward": dataclasses.asdict(self.reward),
            "window": self.window,
            "provenance": self.provenance,
        }
        body = save({name: np.ascontiguousarray(value, np.float64) for name, value in arrays.items()}, {"oppa": json.dumps(notes)})
        try:
            write_atomically(path, body)
        except OSError as error:
            raise InputError(f"`{path}` cannot be written: {reason(error)}", hint="name another file: `--out FILE`") from None

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read weights from a file; raise InputError if it is missing, damaged or of another version."""
        again = "make one: `oppa train-policy JOB`"
        try:
            open_regular(path).close()
            with safe_open(path, "numpy") as file:
                notes = parse_json((file.metadata() or {}).get("oppa", "null"))
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        except (OSError, SafetensorError, ValueError) as error:
            raise InputError(f"`{path}` cannot be read: {reason(error)}", hint=again) from None
        if not isinstance(notes, dict) or notes.get("version") != VERSION or notes.get("observation") != list(NAMES):
            raise InputError(f"`{path}` is not a policy of this version", hint=again)
        try:
            count = len({name.split(".")[1] for name in arrays if name.startswith("layers.")})
            found = cls(
                layers=tuple((arrays[f"layers.{number}.weight"], arrays[f"layers.{number}.bias"]) for number in range(count)),
                mean=arrays["observation.mean"],
                deviation=arrays["observation.deviation"],
                actions=Actions.from_dict(notes["actions"]),
                reward=Reward(**notes["reward"]),
                window=int(notes["window"]),
                provenance=dict(notes["provenance"]),
            )
            found._require_whole()
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise InputError(f"`{path}` is damaged: {error}", hint=again) from None
        return found

    def _require_whole(self) -> None:
        """Raise ValueError if shapes do not match or a number is not finite."""
        sizes = [len(NAMES), *(weight.shape[0] for weight, _ in self.layers)]
        shapes = [(weight.shape, bias.shape) for weight, bias in self.layers]
        if sizes[-1] != len(self.actions.steps) or shapes != [((out, into), (out,)) for into, out in itertools.pairwise(sizes)]:
            raise ValueError(f"its layers have the shapes {[shape for shape, _ in shapes]}")
        if self.mean.shape != (len(NAMES),) or self.deviation.shape != (len(NAMES),) or not (self.deviation > 0).all():
            raise ValueError("the normalisation of its observations is invalid")
        if not all(np.isfinite(array).all() for layer in self.layers for array in layer) or self.window < 1:
            raise ValueError("a number is not finite")


def require_writable(path: Path) -> None:
    """Raise InputError if a policy cannot be written to `path`, before hours of training; create its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writable = not path.is_dir() and os.access(path.parent, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise InputError(f"`{path}` cannot be written", hint="name another file: `--out FILE`")


def normalisation(seen: Sequence[Array]) -> tuple[Array, Array]:
    """Return the mean and standard deviation of observations of shape (n, d); the deviation of a constant column is 1."""
    rows = np.concatenate(seen)
    deviation = rows.std(0)
    return rows.mean(0), np.where(deviation > 1e-6, deviation, 1.0)
