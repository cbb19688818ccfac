"""The page of all policies on one job: everything on it comes from the records of the runs beside it."""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oppa.bench.policies.real import PROPORTIONAL, STATIC
from oppa.bench.tracks import Track, facts_of, recorded, time_to_accuracy
from oppa.report.figures import Axis, Series, lines, standalone
from oppa.report.record import Section, markdown, write_texts

RECORD = Path("results", "policies")
PAGE, COMMAND = "README.md", "oppa bench policies --run"
TARGET = 0.95
"""Accuracy on held-out samples."""
SIZED = (STATIC, PROPORTIONAL)
"""Of which there is one for each batch; the best one stands for all."""


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """All runs."""

    tracks: Sequence[Track]

    @classmethod
    def read(cls, folder: Path) -> "Results":
        """All that is recorded there; raises InputError if that is nothing."""
        return cls([Track.read(path) for path in recorded(folder, COMMAND)])

    @functools.cached_property
    def by_variant(self) -> Mapping[str, Mapping[int, Track]]:
        """By seed; the sooner a policy is at the target, the higher it stands."""
        names = sorted({track.variant for track in self.tracks})
        found = {
            name: {each.seed: each for each in sorted(self.tracks, key=lambda each: each.seed) if each.variant == name} for name in names
        }
        return dict(sorted(found.items(), key=lambda item: statistics.median(map(_reached_s, item[1].values()))))

    @functools.cached_property
    def policies(self) -> Mapping[str, str]:
        """Each policy's variant: the best batch of those that have one."""
        found = dict[str, str]()
        for name in self.by_variant:
            policy = name.rpartition("-")[0] if name.rpartition("-")[2].isdigit() else name
            found.setdefault(policy, name)
        return found

    def median(self, variant: str, of: Callable[[Track], float]) -> float:
        """Over seeds."""
        return statistics.median(map(of, self.by_variant[variant].values()))

    def saved(self, variant: str, beside: str) -> list[float]:
        """By how much sooner it is at the target than another, seed by seed, where both are."""
        ours, theirs = self.by_variant[variant], self.by_variant[beside]
        pairs = [(_reached_s(ours[seed]), _reached_s(theirs[seed])) for seed in ours if seed in theirs]
        return [1 - one / other for one, other in pairs if math.isfinite(one) and math.isfinite(other)]


def to_json(results: Results, folder: Path) -> dict[str, Any]:
    """Each policy's figures, and where they come from."""
    policies = {
        policy: {
            "variant": name,
            "time_to_target_s": _finite(results.median(name, _reached_s)),
            "steps": results.median(name, lambda track: len(track.steps)),
            "final_loss": results.median(name, lambda track: float(track.held_out["loss"].iloc[-1])),
            "final_accuracy": results.median(name, _last_accuracy),
        }
        for policy, name in results.policies.items()
    }
    return {"target_accuracy": TARGET, "policies": policies, **facts_of(folder, recorded(folder, COMMAND))}


def write_page(folder: Path) -> Path:
    """Write the page and its figures beside the runs."""
    text, figures = page(folder)
    write_texts(folder, {**figures, PAGE: text})
    return folder / PAGE


def page(folder: Path) -> tuple[str, dict[str, str]]:
    """The page in Markdown and its figures as SVG by file name: the same runs give the same bytes."""
    results, known = Results.read(folder), facts_of(folder, recorded(folder, COMMAND))
    figures = {"accuracy.svg": _accuracies(results), "batches.svg": _batches(results)}
    facts = {
        **known["origin"],
        "versions": "; ".join(known["versions"]),
        "raw log": f"`runs/`, {known['runs']} runs, SHA-256 `{known['raw_log_sha256']}`",
    }
    parts = [
        "# All policies on one job: digits on four workers of different speed\n",
        "\n".join(f"- {name}: {value}" for name, value in facts.items()) + "\n",
        *(f"## {section.title}\n\n{section.text}\n\n{markdown(section.columns, section.rows)}" for section in sections(results)),
        *(f"![{caption}]({name})\n\n{caption}.\n" for name, (caption, _) in figures.items()),
    ]
    return "\n".join(parts), {name: standalone(svg) for name, (_, svg) in figures.items()}


def sections(results: Results) -> list[Section]:
    """One table of all."""
    static = results.policies.get(STATIC)
    rows = []
    for name, runs in results.by_variant.items():
        times = sorted(map(_reached_s, runs.values()))
        saved = results.saved(name, static) if static and name != static else []
        rows.append(
            [
                name,
                _seconds(statistics.median(times)),
                f"{_seconds(times[0])} to {_seconds(times[-1])}",
                f"{statistics.median(saved):+.0%}" if saved else "",
                f"{results.median(name, lambda track: len(track.steps)):g}",
                f"{results.median(name, lambda track: track.average_batch):.0f}",
                f"{results.median(name, lambda track: float(track.clock_s[-1])):.1f}",
                f"{results.median(name, lambda track: float(track.held_out['loss'].iloc[-1])):.3f}",
                f"{results.median(name, _last_accuracy):.1%}",
                len(runs),
            ]
        )
    text = (
        f"Seconds of steps and changes until {TARGET:.0%} of held-out digits are told; medians over seeds. All see as many samples. "
        f"Sooner: than `{static}`, the best static batch, seed by seed. bsz.: mean samples of a step; all: seconds of the whole run; "
        "loss and accuracy: of held-out samples in the end."
    )
    columns = ("policy", ">to the target, s", ">over seeds", ">sooner", ">steps", ">bsz.", ">all, s", ">loss", ">accuracy", ">seeds")
    return [Section(title="Policies", text=text, columns=columns, rows=rows)]


def _reached_s(track: Track) -> float:
    return time_to_accuracy(track, TARGET)


def _last_accuracy(track: Track) -> float:
    """Of the last five looks, in the mean: one is of few samples."""
    return float(track.held_out["accuracy"].iloc[-5:].mean())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _seconds(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else "never"


def _accuracies(results: Results) -> tuple[str, str]:
    drawn = []
    for policy, name in results.policies.items():
        looks = [track.held_out for track in results.by_variant[name].values()]
        end = min(each["clock_s"].iloc[-1] for each in looks)
        grid = np.linspace(max(each["clock_s"].iloc[0] for each in looks), end, 100)
        middle = np.median([np.interp(grid, each["clock_s"], each["accuracy"]) for each in looks], axis=0)
        drawn.append(Series(name=policy, x=grid.tolist(), y=middle.tolist()))
    caption = "Accuracy on held-out samples against seconds of steps and changes: medians over seeds, the best batch of those that have one"
    return caption, lines({"": drawn}, x=Axis(label="seconds"), y=Axis(label="accuracy"), description=caption)


def _batches(results: Results) -> tuple[str, str]:
    drawn = [
        Series(name=policy, x=track.samples.tolist(), y=track.steps["global_batch"].astype(float).tolist())
        for policy, name in results.policies.items()
        for track in [next(iter(results.by_variant[name].values()))]
    ]
    caption = "Global batch against samples seen, first seed"
    return caption, lines({"": drawn}, x=Axis(label="samples"), y=Axis(label="global batch", log=True), description=caption, steps=True)
