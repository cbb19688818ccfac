"""Measure what a search gains and loses when it starts from what other studies learned (`oppa bench transfer`).

Every target runs once for each arm and seed, under the same noise. All other arms are compared with the search without transfer.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Self

from experiments.transfer.arms import ARMS, MISLED, NONE, TRIALS, TransferRun, run_target
from experiments.transfer.cases import CASES
from oppa.bench.intervals import LEVEL, Estimate, Table, estimate, mean, table_of
from oppa.bench.runs import SearchRun
from oppa.bench.scores import best_at, longest_s, seconds_to, trials_to
from oppa.bench.worker_pool import worker_pool
from oppa.report.record import Section

HARMED = 1.05
"""Ratio of seconds to 95% above which a target counts as harmed."""
EARLY = (1, 5)
"""Numbers of trials after which incumbents are compared."""
OTHERS = tuple(arm for arm in ARMS if arm != NONE)


def sections(repeats: int, targets: Sequence[str]) -> list[Section]:
    """Return the tables over all targets, by kind of transfer, and target by target."""
    made = runs(repeats, tuple(targets))
    return [_arms_section(made, targets), _kinds_section(made, targets), _targets_section(made, targets)]


def to_json(repeats: int, targets: Sequence[str]) -> Mapping[str, object]:
    """Return the scores of each arm, and of each target and arm."""
    made = runs(repeats, tuple(targets))
    effects = {arm: dataclasses.asdict(TransferEffect.of(made, arm, targets)) for arm in OTHERS}
    arms = {arm: {**_scores(made, arm, targets), "effect": effects.get(arm)} for arm in ARMS}
    return {"arms": arms, "targets": {name: {arm: _scores(made, arm, [name]) for arm in ARMS} for name in targets}}


@functools.cache
def runs(repeats: int, targets: tuple[str, ...]) -> list[TransferRun]:
    """Return the runs of every target, arm and seed, with one process per core."""
    cells = [(target, seed) for seed in range(repeats) for target in targets]
    with worker_pool() as pool:
        return [run for made in pool.map(run_target, *zip(*cells, strict=True)) for run in made]


def _arms_section(made: Sequence[TransferRun], targets: Sequence[str]) -> Section:
    rows = []
    for arm in ARMS:
        scores = _scores(made, arm, targets)
        effect = TransferEffect.of(made, arm, targets).cells if arm != NONE else ("",) * 5
        rows.append((arm, f"{scores['trials_to_95']:g}", *(f"{scores[f'best_at_{k}']:.3f}" for k in EARLY), *effect))
    text = (
        f"Each search has {TRIALS} trials. Best at k is the true throughput of the incumbent over the best, in the mean over targets and "
        f"seeds. Differences and the ratio of seconds to 95% are against the search without transfer on the same targets and seeds, with "
        f"{LEVEL:.0%} intervals over targets and seeds. A target is harmed if its seconds are over {HARMED:g} times as long. The "
        f"misleading study claims another framework. Its coefficients lie {MISLED:g} spreads off, so that the best configuration ranks "
        "low. `as if alike` takes one study whole."
    )
    columns = ("starts from", ">trials to 95%", ">best at 1", ">at 5", ">difference at 1", ">at 5", ">seconds to 95%", ">harmed", "worst")
    return Section(title="Gain and harm", text=text, columns=columns, rows=rows)


def _kinds_section(made: Sequence[TransferRun], targets: Sequence[str]) -> Section:
    kinds = {kind: [name for name in targets if CASES[name].kind == kind] for kind in dict.fromkeys(CASES[name].kind for name in targets)}
    rows = [(f"{kind} ({', '.join(names)})", *(_ratio(made, arm, names).format(2) for arm in OTHERS)) for kind, names in kinds.items()]
    text = "Seconds to 95% over those of the search without transfer, with intervals as above."
    return Section(title="By kind", text=text, columns=("to", *(f">{arm}" for arm in OTHERS)), rows=rows)


def _targets_section(made: Sequence[TransferRun], targets: Sequence[str]) -> Section:
    rows = []
    for name in targets:
        cells = (f"{_scores(made, arm, [name])['seconds_to_95']:.0f} s" + _weights(made, arm, name) for arm in ARMS)
        rows.append((name, ", ".join(CASES[name].sources), *cells))
    text = (
        "Median seconds to 95%, with the mean weight of all studies together in brackets. Studies whose trials contradict the cost model "
        "are left out; without a study that is left, the search is the same as without transfer."
    )
    return Section(title="Target by target", text=text, columns=("target", "sources", *(f">{arm}" for arm in ARMS)), rows=rows)


def _weights(made: Sequence[TransferRun], arm: str, target: str) -> str:
    weight = statistics.mean(sum(each.weights.values()) for each in made if (each.run.designer, each.run.task) == (arm, target))
    return f" ({weight:.0%})" if weight else ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransferEffect:
    """Holds what an arm changes against the search without transfer."""

    best_at: Mapping[int, Estimate]
    """Differences of the incumbent's share of the best, by number of trials."""
    seconds: Estimate
    """Ratio of the seconds to 95%."""
    harmed: float
    """Share of targets with a ratio above HARMED."""
    worst: str
    """The target with the largest ratio."""
    worst_seconds: float

    @classmethod
    def of(cls, made: Sequence[TransferRun], arm: str, targets: Sequence[str]) -> Self:
        """Compare an arm with the search without transfer on the same targets and seeds."""
        ratios = {name: _ratio(made, arm, [name]).value for name in targets}
        worst = max(ratios, key=lambda name: ratios[name])
        return cls(
            best_at={k: estimate(mean, _change(made, arm, targets, functools.partial(_best_after, k))) for k in EARLY},
            seconds=_ratio(made, arm, targets),
            harmed=statistics.mean(ratio > HARMED for ratio in ratios.values()),
            worst=worst,
            worst_seconds=ratios[worst],
        )

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the cells of a table."""
        differences = (each.format(3, sign=True) for each in self.best_at.values())
        return (*differences, self.seconds.format(2), f"{self.harmed:.0%}", f"{self.worst}: {self.worst_seconds:.2f}")


def _scores(made: Sequence[TransferRun], arm: str, targets: Collection[str]) -> dict[str, float]:
    chosen, longest = _of(made, arm, targets), _longest(made)
    return {
        **{f"best_at_{k}": statistics.mean(best_at(run, TRIALS)[k - 1] for run in chosen) for k in EARLY},
        "trials_to_95": statistics.median(trials_to(run, TRIALS) for run in chosen),
        "seconds_to_95": statistics.median(seconds_to(run, TRIALS, longest) for run in chosen),
    }


def _ratio(made: Sequence[TransferRun], arm: str, targets: Sequence[str]) -> Estimate:
    """Return the ratio of seconds to 95% to those without transfer, in the geometric mean over targets and seeds."""
    longest = _longest(made)
    logs = estimate(mean, _change(made, arm, targets, lambda run: math.log(seconds_to(run, TRIALS, longest))))
    low, high = (None if log is None else math.exp(log) for log in (logs.low, logs.high))
    return Estimate(value=math.exp(logs.value), low=low, high=high)


def _best_after(trials: int, run: SearchRun) -> float:
    return best_at(run, TRIALS)[trials - 1]


def _change(made: Sequence[TransferRun], arm: str, targets: Sequence[str], figure: Callable[[SearchRun], float]) -> Table:
    """Return by how much a figure is larger than without transfer, by target and seed: the pairs share their noise."""
    ours, without = (table_of(_of(made, each, targets), targets, figure) for each in (arm, NONE))
    return ours - without


def _of(made: Sequence[TransferRun], arm: str, targets: Collection[str]) -> list[SearchRun]:
    return [each.run for each in made if each.run.designer == arm and each.run.task in targets]


def _longest(made: Sequence[TransferRun]) -> dict[str, float]:
    return longest_s((each.run for each in made), TRIALS)
