"""Write the page of all policies on one job from the recorded runs in the same folder."""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.lib.recorded_page import Page, page_of
from experiments.lib.run_figures import batches_figure, held_out_medians
from experiments.lib.run_trace import RunTrace, by_seed, facts_of, read_runs, recorded, time_to_accuracy
from experiments.policies.run import LEARNED, LEARNED_FIRST, PROPORTIONAL, STATIC
from experiments.policies.variations import OF, VARIATIONS
from oppa.report.figures import Axis, lines
from oppa.report.record import Section

COMMAND = "oppa bench policies --run"
TARGET = 0.95
"""Target accuracy on held-out samples."""
VARIED_TARGET = 0.9
"""Target accuracy of the variations, some of which train more slowly."""
COLUMNS = (">to the target, s", ">over seeds", ">sooner", ">steps", ">bsz.", ">all, s", ">loss", ">accuracy", ">seeds")


@dataclasses.dataclass(frozen=True, eq=False)
class PolicyResults:
    """Holds all runs of one job."""

    traces: Sequence[RunTrace]

    @classmethod
    def read(cls, folder: Path) -> "PolicyResults":
        """Read all recorded runs of the example; raises InputError if there are none."""
        return cls([trace for trace in read_runs(folder, COMMAND) if OF not in trace.variant])

    @classmethod
    def of_variation(cls, folder: Path, name: str) -> "PolicyResults":
        """Read the recorded runs of a variation, which may have none; each keeps only the name of its policy."""
        found = [RunTrace.read(path) for path in sorted((folder / "runs").glob(f"{name}{OF}*.csv.gz"))]
        return cls([dataclasses.replace(each, variant=each.variant.partition(OF)[2]) for each in found])

    @functools.cached_property
    def by_variant(self) -> Mapping[str, Mapping[int, RunTrace]]:
        """Return the runs by variant and seed; variants that reach the target sooner come first."""
        return dict(sorted(by_seed(self.traces).items(), key=lambda item: statistics.median(map(_reached_s, item[1].values()))))

    @functools.cached_property
    def policies(self) -> Mapping[str, str]:
        """Return the variant that represents each policy: that of its best batch, if it has several."""
        found = dict[str, str]()
        for name in self.by_variant:
            policy = name.rpartition("-")[0] if name.rpartition("-")[2].isdigit() else name
            found.setdefault(policy, name)
        return found

    def median(self, variant: str, of: Callable[[RunTrace], float]) -> float:
        """Return the median of a figure over the seeds of a variant."""
        return statistics.median(map(of, self.by_variant[variant].values()))

    def saved(self, variant: str, reference: str, target: float = TARGET) -> list[float]:
        """Return the share of time that a variant saves over another until the target, seed by seed.

        Seeds in which neither reaches the target are left out. The value is minus infinity if only the other reaches it, and 1 if only this
        variant does.
        """
        ours, theirs = self.by_variant[variant], self.by_variant[reference]
        pairs = [tuple(time_to_accuracy(each[seed], target) for each in (ours, theirs)) for seed in ours if seed in theirs]
        return [1 - one / other for one, other in pairs if math.isfinite(one) or math.isfinite(other)]


def to_json(results: PolicyResults, folder: Path) -> dict[str, Any]:
    """Return the figures of each policy and their provenance."""
    policies = {
        policy: {
            "variant": name,
            "time_to_target_s": _finite(results.median(name, _reached_s)),
            "steps": results.median(name, lambda trace: len(trace.steps)),
            "final_loss": results.median(name, lambda trace: float(trace.held_out["loss"].iloc[-1])),
            "final_accuracy": results.median(name, _last_accuracy),
        }
        for policy, name in results.policies.items()
    }
    return {"target_accuracy": TARGET, "policies": policies, **facts_of(folder, recorded(folder, COMMAND))}


def page(folder: Path) -> Page:
    """Return the page and its figures."""
    results, title = PolicyResults.read(folder), "All policies on one job: digits on four workers of different speed"
    figures = {"accuracy.svg": _accuracies(results), "batches.svg": _batches(results)}
    return page_of(folder, COMMAND, title, sections(folder), figures)


def sections(folder: Path) -> list[Section]:
    """Return a table of all policies on the example, and one of its variations if there are recorded runs."""
    varied = {each.title: PolicyResults.of_variation(folder, each.name) for each in VARIATIONS}
    rows = [line for title, results in varied.items() for line in _varied(title, results)]
    return [_policies(PolicyResults.read(folder)), *([_variations(rows)] if rows else [])]


def _policies(results: PolicyResults) -> Section:
    static = results.policies.get(STATIC)
    text = (
        f"Seconds of steps and changes until {TARGET:.0%} of held-out digits are classified correctly; medians over seeds. All see as many "
        f"samples. Sooner: than `{static}`, the best static batch, seed by seed. bsz.: mean samples of a step; all: seconds of the whole "
        "run; loss and accuracy: of held-out samples in the end."
    )
    rows = [[name, *_figures(results, name, static)] for name in results.by_variant]
    return Section(title="Policies", text=text, columns=("policy", *COLUMNS), rows=rows)


def _variations(rows: Sequence[Sequence[object]]) -> Section:
    text = (
        f"The same with some of the job changed, until {VARIED_TARGET:.0%} are classified correctly, all from a batch of {LEARNED_FIRST}; "
        "sooner: than that batch shared out evenly. `rl` was learned on the simulated job, but for the policy that is carried over; it "
        "runs only where exploring runs speak for it."
    )
    return Section(title="Optimizers, workers, and a policy carried over", text=text, columns=("job", "policy", *COLUMNS), rows=rows)


def _varied(title: str, results: PolicyResults) -> list[list[object]]:
    """Return a row for each policy, the static batch first."""
    names = [name for name in (STATIC, PROPORTIONAL, LEARNED) if name in results.by_variant]
    return [[title if name == names[0] else "", name, *_figures(results, name, STATIC, VARIED_TARGET)] for name in names]


def _figures(results: PolicyResults, name: str, reference: str | None, target: float = TARGET) -> list[object]:
    """Return the cells of COLUMNS."""
    times = sorted(time_to_accuracy(trace, target) for trace in results.by_variant[name].values())
    saved = (
        results.saved(name, reference, target) if reference is not None and reference in results.by_variant and name != reference else []
    )
    return [
        _seconds(statistics.median(times)),
        f"{_seconds(times[0])} to {_seconds(times[-1])}",
        _sooner(statistics.median(saved)) if saved else "",
        f"{results.median(name, lambda trace: len(trace.steps)):g}",
        f"{results.median(name, lambda trace: trace.average_batch):.0f}",
        f"{results.median(name, lambda trace: float(trace.clock_s[-1])):.1f}",
        f"{results.median(name, lambda trace: float(trace.held_out['loss'].iloc[-1])):.3f}",
        f"{results.median(name, _last_accuracy):.1%}",
        len(results.by_variant[name]),
    ]


def _reached_s(trace: RunTrace) -> float:
    return time_to_accuracy(trace, TARGET)


def _last_accuracy(trace: RunTrace) -> float:
    """Return the mean of the last five evaluations, because one evaluation has few samples."""
    return float(trace.held_out["accuracy"].iloc[-5:].mean())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _seconds(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else "never"


def _sooner(share: float) -> str:
    return f"{share:+.0%}" if math.isfinite(share) else "never"


def _accuracies(results: PolicyResults) -> tuple[str, str]:
    drawn = held_out_medians(_chosen(results), "clock_s", "accuracy")
    caption = "Accuracy on held-out samples against seconds of steps and changes: medians over seeds, the best batch of those that have one"
    return caption, lines({"": drawn}, x=Axis(label="seconds"), y=Axis(label="accuracy"), description=caption)


def _batches(results: PolicyResults) -> tuple[str, str]:
    return batches_figure(_chosen(results), "Global batch against samples seen, first seed")


def _chosen(results: PolicyResults) -> dict[str, Mapping[int, RunTrace]]:
    """Return the runs of each policy by seed, those of the best batch for policies that have one."""
    return {policy: results.by_variant[name] for policy, name in results.policies.items()}
