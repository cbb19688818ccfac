"""Compare active with exhaustive profiling on this machine, with trials of `examples/profile.toml` that really run.

Both tables make decisions along the trajectories. The chosen configurations are measured again, several times and in turn. The regret is
computed from these new measurements, so luck in either profile does not count.
"""

import dataclasses
import functools
import statistics
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.profile.regret import Regret, decided, regret
from oppa import catalog
from oppa.errors import InfeasibleError
from oppa.launchers.resolve import LaunchRequest, open_backend
from oppa.problem.batches import batches_of, over, parse_batches
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.problem.problem import Problem
from oppa.report.record import Section
from oppa.study import Study
from oppa.table import Table
from oppa.trials.runner import load_runner
from oppa.trials.trial import run_trial
from oppa.tuning.designers.active_profiling import ActiveProfiling
from oppa.tuning.designers.exhaustive_profiling import ExhaustiveProfiling
from oppa.tuning.profile import DEFAULT_LOSS, Profiler, profile
from oppa.tuning.session import SilentCallback
from oppa.tuning.trial_executor import TrialExecutor
from oppa.units import format_seconds

JOB, BATCHES = Path("examples", "profile.toml"), "4..64"
AGAIN = "measured again"
Tell = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RealComparison:
    """Compares an active profile with an exhaustive one on this machine."""

    candidates: int
    trials: tuple[int, int]
    """Trials of the active and of the exhaustive profile."""
    seconds: tuple[float, float]
    expected_loss: float | None
    decided: int
    """Number of configurations that either table chose; each is measured again."""
    repeats: int
    """New measurements of each of these configurations."""
    regret: Regret

    @property
    def figures(self) -> dict[str, float]:
        """Return the headline figures, as fractions."""
        return {"active_profile_regret": self.regret.worst, "active_profile_seconds_ratio": self.seconds[0] / self.seconds[1]}

    @property
    def section(self) -> Section:
        """Return the result as a table."""
        ours, theirs = self.seconds
        return Section(
            title="An active profile, compared with an exhaustive one on this machine",
            text=f"`{JOB}` at {BATCHES} has {self.candidates} configurations. Both tables decide along five noise-scale trajectories. "
            f"Their {self.decided} choices are measured again {self.repeats} times in turn. Decisions by the active table lose "
            f"{self.regret.mean:.2%} of goodput, {self.regret.worst:.2%} on the worst trajectory, for {ours / theirs:.0%} of the seconds.",
            columns=("profile", ">trials", ">seconds"),
            rows=[("active", self.trials[0], format_seconds(ours)), ("exhaustive", self.trials[1], format_seconds(theirs))],
        )


def active_profile(tell: Tell, *, repeats: int) -> RealComparison:
    """Run both profiles, and measure their decisions again; this takes about ten minutes on an idle machine.

    Raises:
        EnvironmentLackingError: the example is missing, because this is no checkout.
        InfeasibleError: no trial of a profile could run.
    """
    problem = over(load_job(catalog.root() / JOB), parse_batches(BATCHES))
    candidates, batches = problem.candidates(), batches_of(problem.space)
    active = ActiveProfiling(problem, candidates, seed=0, bound=DEFAULT_LOSS)
    with tempfile.TemporaryDirectory(prefix="oppa-profile-") as folder:
        tell(f"exhaustive profile of {len(candidates)} configurations")
        theirs = _profiled(problem, ExhaustiveProfiling(problem, candidates), Path(folder, "exhaustive"))
        tell(f"active profile: the exhaustive one took {format_seconds(theirs.origin.spent_s)}")
        ours = _profiled(problem, active, Path(folder, "active"))
        contested = decided(ours.rows, batches) | decided(theirs.rows, batches)
        tell(f"measuring {len(contested)} choices {repeats} times; the active profile took {format_seconds(ours.origin.spent_s)}")
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


def _profiled(problem: Problem, profiler: Profiler, folder: Path) -> Table:
    """Return the table of a profile that ran to its end; raises InfeasibleError if no trial could run."""
    with _session(problem, folder) as executor:
        table, why_ended = profile(executor, problem.candidates(), profiler, command="oppa bench", simulated=False)
    if table is None:
        raise InfeasibleError(
            f"no configuration of `{JOB}` could run: {why_ended}", hint="run `oppa profile` with this job to see its trials"
        )
    return table


def _again(problem: Problem, contested: Collection[Configuration], repeats: int, folder: Path) -> dict[Configuration, float]:
    """Return the steps per second of each configuration: the geometric mean over its repeats.

    Configurations take turns, in an order that is reversed each round. A configuration that fails in one round is left out.
    """
    order = sorted(contested, key=lambda each: (each.global_batch, each.id))
    with _session(problem, folder) as executor:
        for round_ in range(repeats):
            for configuration in order[:: 1 if round_ % 2 == 0 else -1]:
                lease = executor.study.claim(configuration, pairing=AGAIN)
                assert lease is not None  # no other process works on this study
                executor.run(lease)
        trials = executor.study.trials()
    rates = {each: [trial.steps_per_s for trial in trials if trial.configuration == each] for each in order}
    return {each: statistics.geometric_mean(filter(None, own)) for each, own in rates.items() if all(own)}


@contextmanager
def _session(problem: Problem, folder: Path) -> Iterator[TrialExecutor]:
    """Open a session in a folder, whose trials run on this machine."""
    runner, grace_s = load_runner(problem.runner), problem.limits.grace_s
    request = LaunchRequest(launcher="local").resolve(problem.cluster)
    with (
        Study.create(folder, problem.to_dict(), problem.fingerprint) as study,
        open_backend(request, problem.cluster, folder, name=problem.name, grace_s=grace_s, on_tick=lambda: None) as engine,
        engine.launcher(runner, study=study.uuid, grace_s=grace_s) as launcher,
    ):
        launcher.prepare()
        yield TrialExecutor(study, problem, functools.partial(run_trial, launcher), SilentCallback())
