"""Compare a short, fixed set of searches with a recorded reference, to detect regressions in continuous integration.

Time passes on the tasks' own clocks, so a busy machine changes no figure. Runs are paired with those of the reference by task and seed:

    slower    mean over runs of log(seconds to 95% now / then), and its standard error
    worse     mean over runs of (best after ten trials then - now), and its standard error

A regression exceeds SLOWER or WORSE, and also two standard errors.

The reference stores a digest of its tasks and runs. The digest leaves priors out, because their effect on the search is part of the
comparison.
"""

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oppa import catalog
from oppa.atomic_write import write_atomically
from oppa.bench.registry import CI_ARGUMENTS, CI_PLAYS, CI_TRIALS, inputs
from oppa.bench.runs import SearchRun
from oppa.bench.scores import best_at, longest_s, seconds_to
from oppa.bench.search import Comparison, compare
from oppa.errors import EnvironmentLackingError, InputError
from oppa.report.inputs import Inputs
from oppa.report.record import Section, provenance, written
from oppa.tuning.designers import DEFAULT, require_designer

COMPARISONS = tuple(
    Comparison(suite=suite, designers=plays.designers, seeds=plays.seeds, trials=CI_TRIALS) for suite, plays in CI_PLAYS.items()
)
REFERENCE = Path("results", "ci", "reference.json")
SLOWER, WORSE = math.log(1.1), 0.01
"""Tolerated changes: 10% more seconds, and 0.01 less of the best throughput after ten trials."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Holds the scores of one run: `seconds` to 95% of the best, and `best`, the incumbent's share of the best after ten trials."""

    suite: str
    task: str
    designer: str
    seed: int
    seconds: float
    best: float

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Return the suite, task, designer and seed, by which runs are paired."""
        return self.suite, self.task, self.designer, self.seed


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Compares a designer with the reference: means over paired runs, and their standard errors."""

    designer: str
    plays: int
    slower: float
    slower_error: float
    worse: float
    worse_error: float

    @property
    def regressed(self) -> bool:
        """Return whether a change exceeds both its tolerance and two standard errors."""
        slower = self.slower > max(SLOWER, 2 * self.slower_error)
        return slower or self.worse > max(WORSE, 2 * self.worse_error)


def ci_inputs(names: Sequence[str] | None = None, designer: str = DEFAULT) -> Inputs:
    """Return the inputs of the comparison; raises InputError for an unknown task."""
    return inputs("ci", names, **CI_ARGUMENTS, **({} if designer == DEFAULT else {"designer": designer}))


def measure(on_run: Callable[[SearchRun, int, int], None], *, names: Sequence[str] | None = None, designer: str = DEFAULT) -> list[Score]:
    """Run all searches now, and return their scores.

    Args:
        on_run: Called as that of `compare`.
        names: Tasks to run; all by default.
        designer: Runs in place of `oppa`; its scores are compared with those of `oppa`.

    Raises:
        InputError: for an unknown task or designer.
    """
    require_designer(designer)
    ci_inputs(names)  # raises InputError for an unknown task before any run
    scores = []
    for comparison in COMPARISONS:
        tasks, _ = comparison.tasks()
        stands_for = {name: designer if name == DEFAULT else name for name in comparison.designers}
        replaced = dataclasses.replace(comparison, designers=tuple(dict.fromkeys(stands_for.values())))
        chosen = [task for task in tasks if names is None or task.name in names]
        runs = compare(replaced, chosen, None, on_run) if chosen else []
        scores += [_score(comparison, run, name) for name, own in stands_for.items() for run in runs if run.designer == own]
    return scores


def read_reference(path: Path | None = None, *, inputs: Inputs | None = None) -> list[Score]:
    """Return the recorded scores.

    Args:
        inputs: Current inputs of the comparison; they must match the recorded ones.

    Raises:
        EnvironmentLackingError: there is no reference.
        InputError: the file is not a reference, or has other tasks or runs.
    """
    path = path or catalog.root() / REFERENCE
    hint = "record a reference: `oppa bench ci --record`"
    try:
        values = json.loads(path.read_text())
        scores, known = [Score(**score) for score in values["scores"]], values.get("inputs")
        differs = [] if inputs is None else Inputs.from_dict(known).differences(inputs) if known else ["it has no digest of its tasks"]
    except FileNotFoundError:
        raise EnvironmentLackingError(f"`{path}` does not exist", hint=hint) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"`{path}` is not a reference: {error}", hint=hint) from None
    if differs:
        raise InputError(f"`{path}` is a reference for other tasks: {', '.join(differs)}", hint=hint)
    return scores


def record(scores: Sequence[Score], path: Path | None = None) -> Path:
    """Write these scores as the reference, and return its path; raises InputError if the file cannot be written."""
    path = path or catalog.root() / REFERENCE
    current = ci_inputs()
    values: Mapping[str, Any] = {
        "origin": provenance(),
        "inputs": {"digest": current.digest, **current.to_dict()},
        "scores": [dataclasses.asdict(score) for score in scores],
    }
    with written(path.parent):
        write_atomically(path, f"{json.dumps(values, indent=1)}\n".encode())
    return path


def changes(now: Sequence[Score], then: Sequence[Score]) -> list[Change]:
    """Return one change per designer; raises InputError if the reference lacks one of the runs."""
    before = {score.key: score for score in then}
    if lacking := [score.key for score in now if score.key not in before]:
        raise InputError(f"the reference lacks {len(lacking)} of {len(now)} runs", hint="record it again: `oppa bench ci --record`")
    names = dict.fromkeys(score.designer for score in now)
    return [_change(name, [(before[score.key], score) for score in now if score.designer == name]) for name in names]


def sections(found: Sequence[Change]) -> list[Section]:
    """Return the table that continuous integration posts."""
    rows = [
        (
            each.designer,
            str(each.plays),
            f"{math.exp(each.slower):.2f}x (error {each.slower_error:.2f})",
            f"{-each.worse:+.3f} (error {each.worse_error:.3f})",
            "regressed" if each.regressed else "no regression",
        )
        for each in found
    ]
    text = "Runs are compared in pairs with the recorded ones: seconds until within 5% of the best, and share of the best after ten trials."
    columns = ("designer", ">runs", ">seconds", ">best after 10", "verdict")
    return [Section(title="Comparison with the reference", text=text, columns=columns, rows=rows)]


def _score(comparison: Comparison, run: SearchRun, designer: str) -> Score:
    """Return the score of a run, under the name of the designer that it replaces. Without 95%, its own seconds count."""
    trials = comparison.trials
    seconds, best = seconds_to(run, trials, longest_s([run], trials)), best_at(run, trials)[9]
    return Score(suite=comparison.suite, task=run.task, designer=designer, seed=run.seed, seconds=seconds, best=best)


def _change(designer: str, pairs: Sequence[tuple[Score, Score]]) -> Change:
    slower = [math.log(now.seconds / then.seconds) for then, now in pairs]
    worse = [then.best - now.best for then, now in pairs]
    return Change(
        designer=designer,
        plays=len(pairs),
        slower=statistics.mean(slower),
        slower_error=_standard_error(slower),
        worse=statistics.mean(worse),
        worse_error=_standard_error(worse),
    )


def _standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
