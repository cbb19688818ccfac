"""A short, fixed comparison for continuous integration: has the search become worse than what is on record?

Everything runs on the tasks' own clocks, so a busy machine changes nothing. Plays are paired with those of the reference by task and seed:

    slower    mean over plays of log(seconds to 95% now / then), and its standard error
    worse     mean over plays of best after ten trials, then minus now, and its standard error

A regression is more than SLOWER or WORSE, and more than two standard errors.
"""

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from oppa import catalog
from oppa.bench.runs import Run
from oppa.bench.scores import best_at, seconds_to
from oppa.bench.search import Comparison, compare
from oppa.errors import EnvironmentLackingError, InputError
from oppa.report.record import Section, provenance

COMPARISONS = (
    Comparison(suite="cpu", designers=("oppa", "random"), seeds=4, trials=20),
    Comparison(suite="simulated", designers=("oppa", "random"), seeds=2, trials=20),
)
REFERENCE = Path("results", "ci", "reference.json")
SLOWER, WORSE = math.log(1.1), 0.01
"""What is tolerated: 10% more seconds, 1% less after ten trials."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One play in two numbers."""

    suite: str
    task: str
    designer: str
    seed: int
    seconds: float
    best: float

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What it is paired by."""
        return self.suite, self.task, self.designer, self.seed


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A designer against the reference: means over paired plays, with their standard errors."""

    designer: str
    plays: int
    slower: float
    slower_error: float
    worse: float
    worse_error: float

    @property
    def regressed(self) -> bool:
        """By more than is tolerated, and more than noise explains."""
        slower = self.slower > max(SLOWER, 2 * self.slower_error)
        return slower or self.worse > max(WORSE, 2 * self.worse_error)


def measure(on_run: Callable[[Run, int, int], None]) -> list[Score]:
    """Play everything now."""
    scores = []
    for comparison in COMPARISONS:
        tasks, _ = comparison.tasks()
        scores += [_score(comparison, run) for run in compare(comparison, tasks, None, on_run)]
    return scores


def read_reference(path: Path | None = None) -> list[Score]:
    """What is on record; raises EnvironmentLackingError if there is none, InputError if it is none."""
    path = path or catalog.root() / REFERENCE
    try:
        return [Score(**score) for score in json.loads(path.read_text())["scores"]]
    except FileNotFoundError:
        raise EnvironmentLackingError(f"`{path}` is not there", hint="record one: `oppa bench ci --record`") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"`{path}` is no reference: {error}", hint="record one: `oppa bench ci --record`") from None


def record(scores: Sequence[Score], path: Path | None = None) -> Path:
    """Make these scores the reference."""
    path = path or catalog.root() / REFERENCE
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {"origin": provenance(), "scores": [dataclasses.asdict(score) for score in scores]}
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(values, indent=1) + "\n")
    temporary.replace(path)
    return path


def changes(now: Sequence[Score], then: Sequence[Score]) -> list[Change]:
    """Designer by designer; raises InputError where the reference is one of other plays."""
    before = {score.key: score for score in then}
    if lacking := [score.key for score in now if score.key not in before]:
        raise InputError(f"the reference lacks {len(lacking)} of {len(now)} plays", hint="record another: `oppa bench ci --record`")
    names = dict.fromkeys(score.designer for score in now)
    return [_change(name, [(before[score.key], score) for score in now if score.designer == name]) for name in names]


def sections(found: Sequence[Change]) -> list[Section]:
    """The table that is posted."""
    rows = [
        (
            each.designer,
            str(each.plays),
            f"{math.exp(each.slower):.2f}x (error {each.slower_error:.2f})",
            f"{-each.worse:+.3f} (error {each.worse_error:.3f})",
            "regressed" if each.regressed else "as before, or better",
        )
        for each in found
    ]
    text = (
        "Plays of now against those on record, in pairs: seconds until within 5% of the best, and the share of the best after ten trials."
    )
    columns = ("designer", ">plays", ">seconds", ">best after 10", "verdict")
    return [Section(title="Against the reference", text=text, columns=columns, rows=rows)]


def _score(comparison: Comparison, run: Run) -> Score:
    trials = comparison.trials
    seconds, best = seconds_to(run, trials), best_at(run, trials)[9]
    return Score(suite=comparison.suite, task=run.task, designer=run.designer, seed=run.seed, seconds=seconds, best=best)


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
