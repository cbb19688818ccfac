"""Fit learning curves to real runs: loss and accuracy as functions of progress.

The unit of progress is a step of one sample. A step of B samples makes a progress of worth(B, phi) at a noise scale phi. That is B times
its statistical efficiency and its learning-rate factor (`oppa.table.goodput`). If runs have several batch sizes, phi is the value at which
their curves agree best.

Notation (runs r with a constant batch B_r each; accuracies a):
    s_r(a)    steps until run r first reached accuracy a
    p_r(a)    s_r(a) worth(B_r, phi)
    phi       argmin of the mean over a of the variance over r of log p_r(a)
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from oppa import catalog
from oppa.errors import InputError, require_known
from oppa.problem.declaration import DeclaredTable, Positive, Source, read
from oppa.problem.training import Scaling
from oppa.table.goodput import goodput

FOLDER = "learning_curves"
LEVELS = 40
"""Number of points of a curve."""
RECENT = 10
"""Steps before each validation whose loss and gradient noise are averaged."""
NOISE_SCALES = np.logspace(0, 4, 161)
"""Candidate values of phi, in samples."""

_Line = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LearningCurve:
    """Holds the points of a curve, in order of progress; it is linear between them and constant outside."""

    progress: tuple[float, ...]
    loss: tuple[float, ...]
    accuracy: tuple[float, ...]
    """Accuracy on held-out samples."""
    noise_scale: float
    """Gradient noise scale phi, in samples."""
    scaling: Scaling
    """Rule by which the learning rate followed the batch size."""
    variance_ratio: tuple[float, ...] = ()
    """V / |g|^2 as steps measured it, in samples; if empty, the noise scale applies.

    The two differ: the noise scale is the value that explains runs of several batch sizes.
    """

    def loss_at(self, progress: float) -> float:
        """Return the training loss at a progress."""
        return float(np.interp(progress, self.progress, self.loss))

    def accuracy_at(self, progress: float) -> float:
        """Return the accuracy on held-out samples at a progress."""
        return float(np.interp(progress, self.progress, self.accuracy))

    def variance_ratio_at(self, progress: float) -> float:
        """Return the geometric mean of V / |g|^2 that steps measure at a progress, in samples."""
        return float(np.interp(progress, self.progress, self.variance_ratio)) if self.variance_ratio else self.noise_scale

    def worth(self, global_batch: int) -> float:
        """Return the progress of one step of `global_batch` samples."""
        return _worth(global_batch, self.noise_scale, self.scaling)

    @classmethod
    def of(cls, runs: Sequence[Iterable[_Line]], scaling: Scaling) -> Self:
        """Return the curve of some runs of one job, from their ledgers; each run has one batch size.

        Raises:
            InputError: a run has too few validations of accuracy, or several batch sizes; the runs share no range of accuracy; or a
                single run has no reliable noise scale.
        """
        seen = [_Seen.of(lines) for lines in runs]
        levels = np.linspace(max(each.accuracy[0] for each in seen), min(each.accuracy[-1] for each in seen), LEVELS)
        if not seen or levels[-1] <= levels[0]:
            raise InputError("the runs share no range of accuracy", hint="train them longer")
        steps = np.array([each.steps_until(levels) for each in seen])
        spread = [_logs(steps, seen, phi, scaling).var(0).mean() for phi in NOISE_SCALES]
        phi = float(NOISE_SCALES[int(np.argmin(spread))]) if len(seen) > 1 else seen[0].noise_scale()
        progress = np.exp(_logs(steps, seen, phi, scaling).mean(0))
        losses = np.mean([each.loss_until(levels) for each in seen], 0)
        columns = {"progress": progress, "loss": losses, "accuracy": levels}
        if all(np.isfinite(each.log_variance).all() for each in seen):
            columns["variance_ratio"] = np.exp(np.mean([each.log_variance_until(levels) for each in seen], 0))
        return cls(**{name: tuple(map(float, column)) for name, column in columns.items()}, noise_scale=phi, scaling=scaling)

    @classmethod
    def load(cls, name: str) -> Self:
        """Return a curve of `priors/learning_curves`; raises InputError for an unknown name."""
        folder = catalog.root() / "priors" / FOLDER
        known = sorted(path.stem for path in folder.glob("*.toml"))
        require_known(name, known, f"the learning curve `{name}` does not exist")
        return cls.read(folder / f"{name}.toml")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the curve of a file; raises InputError if the file is wrong."""
        found = read(_File, path, error=InputError)
        columns = {name: tuple(getattr(found, name)) for name in ("progress", "loss", "accuracy", "variance_ratio")}
        if len({len(column) for name, column in columns.items() if column or name != "variance_ratio"}) > 1 or list(
            found.progress
        ) != sorted(found.progress):
            raise InputError(
                f"`{path.name}`: its columns have different lengths, or progress falls",
                hint="write columns of equal length, in order of progress",
            )
        return cls(**columns, noise_scale=found.noise_scale, scaling=found.scaling)


def _worth(global_batch: int, noise_scale: float, scaling: Scaling) -> float:
    return float(goodput(global_batch, global_batch, noise_scale, scaling=scaling))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Seen:
    """Holds one run at its validations: the best accuracy so far, the steps done, and the loss and log V / |g|^2 just before."""

    batch: int
    steps: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    loss: NDArray[np.float64]
    log_variance: NDArray[np.float64]
    noise_scales: tuple[float, ...]

    @classmethod
    def of(cls, lines: Iterable[_Line]) -> Self:
        """Return the run that a ledger records; raises InputError for fewer than 5 validations, or several batch sizes."""
        batches, losses, noise = set[int](), list[float](), list[float]()
        variances, validations = list[float](), list[tuple[int, float, float, float]]()
        for line in lines:
            if line["event"] == "step":
                batches.add(line["global_batch"])
                losses += [line["loss"]] if line["loss"] is not None else []  # None if it was not finite
                noise += [line["noise_scale"]] if line.get("health") == "healthy" else []
                variances += [math.log(ratio)] if (ratio := line.get("variance_ratio") or 0.0) > 0 else []
            elif line["event"] == "validated" and line.get("accuracy") is not None and losses:
                variance = float(np.mean(variances[-RECENT:])) if variances else math.nan
                validations.append((line["step"] + 1, line["accuracy"], float(np.mean(losses[-RECENT:])), variance))
        if len(validations) < 5 or len(batches) != 1:
            hint = "set `validation` and `validate_every` in [train] for a model whose outputs are classes, and use one batch size"
            raise InputError(
                f"the run has {len(validations)} validations of accuracy and {len(batches)} batch sizes; a curve needs 5 and 1", hint=hint
            )
        steps, accuracies, means, logs = (np.array(column, np.float64) for column in zip(*validations, strict=True))
        best = np.maximum.accumulate(accuracies)
        return cls(batch=batches.pop(), steps=steps, accuracy=best, loss=means, log_variance=logs, noise_scales=tuple(noise))

    def steps_until(self, levels: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the steps until each accuracy was first reached."""
        return np.interp(levels, *self._first(self.steps))

    def loss_until(self, levels: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the loss where each accuracy was first reached."""
        return np.interp(levels, *self._first(self.loss))

    def log_variance_until(self, levels: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return log V / |g|^2 where each accuracy was first reached."""
        return np.interp(levels, *self._first(self.log_variance))

    def noise_scale(self) -> float:
        """Return the median of the run's reliable noise scales, in samples; raises InputError if it has none."""
        if not self.noise_scales:
            raise InputError("the run has no reliable noise scale", hint="use runs with several batch sizes")
        return float(np.median(self.noise_scales))

    def _first(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the distinct accuracies in rising order, and `values` where each was first reached."""
        accuracies, places = np.unique(self.accuracy, return_index=True)
        return accuracies, values[places]


def _logs(steps: NDArray[np.float64], seen: Sequence[_Seen], noise_scale: float, scaling: Scaling) -> NDArray[np.float64]:
    """Return log p, shape (runs, accuracies)."""
    return np.asarray(np.log(steps) + np.log([[_worth(each.batch, noise_scale, scaling)] for each in seen]))


class _File(DeclaredTable):
    """Validates the file of a curve."""

    description: str
    source: Source
    scaling: Scaling
    noise_scale: Positive
    progress: list[float] = Field(min_length=2)
    loss: list[float]
    accuracy: list[float]
    variance_ratio: list[Positive] = Field(default_factory=list)
