"""The same on this machine, with trials that really run: an exhaustive and an active profile of `examples/profile.toml`.

What either table decides for along the trajectories is then measured again, several times and in turn, and the regret is that of these
measurements: neither profile's own luck counts.
"""

import dataclasses
import functools
import statistics
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oppa import catalog
from oppa.bench.profile_regret import Regret, decided, regret
from oppa.errors import EnvironmentLackingError, InfeasibleError
from oppa.places.engine import Request, open_engine
from oppa.problem.batches import batches_of, over, parse_batches
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.problem.problem import Problem
from oppa.report.record import Section
from oppa.study import Lease, Study
from oppa.table import Table
from oppa.trials.runner import load_runner
from oppa.trials.trial import TrialResult, run_trial
from oppa.trials.wire import Measurement
from oppa.tuning.designers.active import Active
from oppa.tuning.designers.complete import Complete
from oppa.tuning.profile import DEFAULT_LOSS, Keeper, Profiler, profile
from oppa.tuning.search import Sitting
from oppa.units import format_seconds

JOB, BATCHES = Path("examples", "profile.toml"), "4..64"
REPEATS = 3
AGAIN = "measured again"
Tell = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RealComparison:
    """An active profile against an exhaustive one, on this machine."""

    candidates: int
    trials: tuple[int, int]
    """Of the active and of the exhaustive profile."""
    seconds: tuple[float, float]
    expected_loss: float | None
    decided: int
    """Configurations that either table decided for, and that were measured again."""
    repeats: int
    """Of each of them."""
    regret: Regret

    @property
    def figures(self) -> dict[str, float]:
        """The headlines, as shares."""
        return {"active_profile_regret": self.regret.worst, "active_profile_seconds_ratio": self.seconds[0] / self.seconds[1]}

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return dataclasses.asdict(self)

    @property
    def section(self) -> Section:
        """As a table."""
        ours, theirs = self.seconds
        return Section(
            title="An active profile against an exhaustive one, on this machine",
            text=f"`{JOB}` at {BATCHES}: {self.candidates} configurations. Decisions of both tables along five trajectories of the noise "
            f"scale, {self.decided} configurations in all, measured again {self.repeats} times in turn: the active table's lose "
            f"{self.regret.mean:.2%} of goodput, {self.regret.worst:.2%} on the worst trajectory, for {ours / theirs:.0%} of the seconds.",
            columns=("profile", ">trials", ">seconds"),
            rows=[("active", self.trials[0], format_seconds(ours)), ("exhaustive", self.trials[1], format_seconds(theirs))],
        )


def active_profile(tell: Tell, *, repeats: int = REPEATS) -> RealComparison:
    """Run both profiles, and what they decide for again; some ten minutes on an idle machine.

    Raises:
        EnvironmentLackingError: outside a checkout there is no example.
    """
    problem = _problem()
    candidates, batches = problem.candidates(), batches_of(problem.space)
    active = Active(problem, candidates, seed=0, bound=DEFAULT_LOSS)
    with tempfile.TemporaryDirectory(prefix="oppa-profile-") as folder:
        tell(f"exhaustive profile: {len(candidates)} configurations")
        theirs = _profiled(problem, Complete(problem, candidates), Path(folder, "exhaustive"))
        tell(f"active profile: the exhaustive one took {format_seconds(theirs.origin.spent_s)}")
        ours = _profiled(problem, active, Path(folder, "active"))
        contested = decided(ours.rows, batches) | decided(theirs.rows, batches)
        tell(f"{len(contested)} decisions again, {repeats} times; the active profile took {format_seconds(ours.origin.spent_s)}")
        rates = _again(problem, contested, repeats, Path(folder, "again"))
    return RealComparison(
        candidates=len(candidates),
        trials=(ours.origin.trials, theirs.origin.trials),
        seconds=(ours.origin.spent_s, theirs.origin.spent_s),
        expected_loss=ours.origin.expected_loss,
        decided=len(contested),
        repeats=repeats,
        regret=regret(ours.rows, theirs.rows, rates.get, batches),
    )


def _problem() -> Problem:
    path = catalog.root() / JOB
    if not path.is_file():
        raise EnvironmentLackingError(f"`{path}` is not there", hint="run it from a checkout")
    return over(load_job(path), parse_batches(BATCHES))


def _profiled(problem: Problem, profiler: Profiler, folder: Path) -> Table:
    """The table of a profile that ran to its end; raises InfeasibleError where nothing ran."""
    with _sitting(problem, folder) as sitting:
        candidates = problem.candidates()
        keeper = Keeper(sitting, candidates, profiler, bound=DEFAULT_LOSS, command="oppa bench", imitated=False)
        table, why_ended = profile(sitting, candidates, profiler, keeper)
    if table is None:
        raise InfeasibleError(f"nothing of `{JOB}` could run: {why_ended}", hint="look at its trials: `oppa profile` with it")
    return table


def _again(problem: Problem, contested: Collection[Configuration], repeats: int, folder: Path) -> dict[Configuration, float]:
    """Steps per second of each in the mean of its repeats, which take turns, the order reversed each round; none of what failed in one."""
    order = sorted(contested, key=lambda each: (each.global_batch, each.id))
    with _sitting(problem, folder) as sitting:
        for round_ in range(repeats):
            for configuration in order[:: 1 if round_ % 2 == 0 else -1]:
                lease = sitting.study.claim(configuration, pairing=AGAIN)
                assert lease is not None  # nobody else works on this study
                sitting.run(lease)
        trials = sitting.study.trials()
    rates = {each: [trial.steps_per_s for trial in trials if trial.configuration == each] for each in order}
    return {each: statistics.geometric_mean(filter(None, own)) for each, own in rates.items() if all(own)}


@contextmanager
def _sitting(problem: Problem, folder: Path) -> Iterator[Sitting]:
    """At work in a folder, with trials that run on this machine."""
    runner, grace_s = load_runner(problem.runner), problem.limits.grace_s
    request = Request(launcher="local").resolve(problem.cluster)
    with (
        Study.create(folder, problem.to_dict(), problem.fingerprint) as study,
        open_engine(request, problem.cluster, folder, name=problem.name, grace_s=grace_s, on_tick=lambda: None) as engine,
        engine.launcher(runner, study=study.uuid, grace_s=grace_s) as launcher,
    ):
        launcher.prepare()
        yield Sitting(study, problem, functools.partial(run_trial, launcher), _Unwatched())


class _Unwatched:
    """Nobody looks on."""

    def started(self, lease: Lease) -> None:
        """Not told."""

    def stepped(self, measurement: Measurement) -> None:
        """Not told."""

    def ended(self, lease: Lease, result: TrialResult) -> None:
        """Not told."""

    def tick(self) -> None:
        """Goes on."""
