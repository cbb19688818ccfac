"""What a model learns from samples, as real runs have measured it: loss and accuracy by progress.

Progress is counted in samples that are batches of their own: a step of B samples at a noise scale phi brings what `oppa.table.goodput` says
that B of them are worth. Of runs with several batch sizes, phi is what makes their curves fall together best.

Notation (runs r with a constant batch B_r each; accuracies a):
    s_r(a)    steps until run r has had the accuracy a
    p_r(a)    s_r(a) worth(B_r, phi)
    phi       argmin of the mean over a of the variance over r of log p_r(a)
"""

import dataclasses
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from oppa import catalog
from oppa.errors import InputError, nearest
from oppa.problem.declaration import Positive, Table, validate
from oppa.problem.training import Scaling
from oppa.table.goodput import goodput

FOLDER = "learning_curves"
LEVELS = 40
"""Points of a curve."""
RECENT = 10
"""Steps before a look whose loss and noise stand for it."""
NOISE_SCALES = np.logspace(0, 4, 161)
"""Among which phi is looked for."""

_Line = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LearningCurve:
    """Points of a curve, in order of progress; between them it is straight, and behind the last it stays."""

    progress: tuple[float, ...]
    loss: tuple[float, ...]
    accuracy: tuple[float, ...]
    """Of held-out samples."""
    noise_scale: float
    """Samples."""
    scaling: Scaling
    """How the learning rate followed the batch."""
    variance_ratio: tuple[float, ...] = ()
    """V / |g|^2 as steps measured it, samples; without it, the noise scale. The two differ: the latter is what sizes showed."""

    def loss_at(self, progress: float) -> float:
        """Of what is trained on."""
        return float(np.interp(progress, self.progress, self.loss))

    def accuracy_at(self, progress: float) -> float:
        """Of held-out samples."""
        return float(np.interp(progress, self.progress, self.accuracy))

    def variance_ratio_at(self, progress: float) -> float:
        """That steps measure there, in the geometric mean."""
        return float(np.interp(progress, self.progress, self.variance_ratio)) if self.variance_ratio else self.noise_scale

    def worth(self, global_batch: int) -> float:
        """Progress of a step of so many samples."""
        return _worth(global_batch, self.noise_scale, self.scaling)

    @classmethod
    def of(cls, runs: Sequence[Iterable[_Line]], scaling: Scaling) -> Self:
        """From the ledgers of runs of one job, each with a batch of its own.

        Raises:
            InputError: if a run has not looked at the accuracy of held-out samples often enough, or there is one run alone and its noise
                scale cannot be believed.
        """
        seen = [_Seen.of(lines) for lines in runs]
        levels = np.linspace(max(each.accuracy[0] for each in seen), min(each.accuracy[-1] for each in seen), LEVELS)
        if not seen or levels[-1] <= levels[0]:
            raise InputError("the runs have no accuracy in common", hint="train them longer")
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
        """One of `priors/learning_curves`; raises InputError for an unknown name."""
        folder = catalog.root() / "priors" / FOLDER
        known = sorted(path.stem for path in folder.glob("*.toml"))
        if name not in known:
            raise InputError(f"no learning curve is called `{name}`", hint=nearest(name, known))
        return cls.read(folder / f"{name}.toml")

    @classmethod
    def read(cls, path: Path) -> Self:
        """One of a file; raises InputError for what is wrong in it."""
        found = validate(_File, tomllib.loads(path.read_text()), error=InputError)
        columns = {name: tuple(getattr(found, name)) for name in ("progress", "loss", "accuracy", "variance_ratio")}
        if len({len(column) for name, column in columns.items() if column or name != "variance_ratio"}) > 1 or list(
            found.progress
        ) != sorted(found.progress):
            raise InputError(f"`{path.name}`: its columns do not fit together", hint="as many of each, by rising progress")
        return cls(**columns, noise_scale=found.noise_scale, scaling=found.scaling)


def _worth(global_batch: int, noise_scale: float, scaling: Scaling) -> float:
    return float(goodput(global_batch, global_batch, noise_scale, scaling=scaling))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Seen:
    """A run: the best accuracy so far at each look, the step behind which that was, and loss and log V / |g|^2 about there."""

    batch: int
    steps: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    loss: NDArray[np.float64]
    log_variance: NDArray[np.float64]
    noise_scales: tuple[float, ...]

    @classmethod
    def of(cls, lines: Iterable[_Line]) -> Self:
        """From its ledger."""
        batches, losses, noise = set[int](), list[float](), list[float]()
        variances, looks = list[float](), list[tuple[int, float, float, float]]()
        for line in lines:
            if line["event"] == "step":
                batches.add(line["global_batch"])
                losses += [line["loss"]] if line["loss"] is not None else []  # it was not finite
                noise += [line["noise_scale"]] if line.get("health") == "healthy" else []
                variances += [math.log(ratio)] if (ratio := line.get("variance_ratio") or 0.0) > 0 else []
            elif line["event"] == "validated" and line.get("accuracy") is not None and losses:
                variance = float(np.mean(variances[-RECENT:])) if variances else math.nan
                looks.append((line["step"] + 1, line["accuracy"], float(np.mean(losses[-RECENT:])), variance))
        if len(looks) < 5 or len(batches) != 1:
            hint = "set `validation` and `validate_every` in [train], for a model whose outputs are classes, and keep one batch"
            raise InputError(f"a run with {len(looks)} looks at its accuracy, and {len(batches)} batch sizes, tells of no curve", hint=hint)
        steps, accuracies, means, logs = (np.array(column, np.float64) for column in zip(*looks, strict=True))
        best = np.maximum.accumulate(accuracies)
        return cls(batch=batches.pop(), steps=steps, accuracy=best, loss=means, log_variance=logs, noise_scales=tuple(noise))

    def steps_until(self, levels: NDArray[np.float64]) -> NDArray[np.float64]:
        """Until these accuracies were had."""
        return np.interp(levels, *self._first(self.steps))

    def loss_until(self, levels: NDArray[np.float64]) -> NDArray[np.float64]:
        """And the loss there."""
        return np.interp(levels, *self._first(self.loss))

    def log_variance_until(self, levels: NDArray[np.float64]) -> NDArray[np.float64]:
        """And the noise there."""
        return np.interp(levels, *self._first(self.log_variance))

    def noise_scale(self) -> float:
        """That it has measured; raises InputError where that cannot be believed."""
        if not self.noise_scales:
            raise InputError("the run has no noise scale to be believed", hint="give runs with several batch sizes")
        return float(np.median(self.noise_scales))

    def _first(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Accuracies, each once, and these values where each was first had."""
        accuracies, places = np.unique(self.accuracy, return_index=True)
        return accuracies, values[places]


def _logs(steps: NDArray[np.float64], seen: Sequence[_Seen], noise_scale: float, scaling: Scaling) -> NDArray[np.float64]:
    """log p, shape (runs, accuracies)."""
    return np.asarray(np.log(steps) + np.log([[_worth(each.batch, noise_scale, scaling)] for each in seen]))


class _File(Table):
    """A file of a curve."""

    description: str
    source: str
    scaling: Scaling
    noise_scale: Positive
    progress: list[float] = Field(min_length=2)
    loss: list[float]
    accuracy: list[float]
    variance_ratio: list[Positive] = Field(default_factory=list)
