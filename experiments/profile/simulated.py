"""Compare active with exhaustive profiling on simulated clusters: regret and cost (`oppa bench profile`).

Both profiles have the same noise. Each table makes decisions along five trajectories of the noise scale, and the simulator without noise
evaluates them. The cost is the seconds of all trials. An exhaustive profile runs every trial to its end. An active one ends a trial
once it is precise enough. It ends altogether once its expected loss of goodput is within the bound.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from experiments.profile.regret import Regret, regret
from oppa import catalog
from oppa.bench.run_designer import REPEAT
from oppa.problem.batches import batches_of, over, parse_batches
from oppa.problem.job import load_job
from oppa.report.record import Section
from oppa.simulator.benchmark_task import BenchmarkTask
from oppa.simulator.executor import run_simulated
from oppa.simulator.simulator import Simulator
from oppa.table import TableRow
from oppa.tuning.designer import Observation
from oppa.tuning.designers.active_profiling import ActiveProfiling
from oppa.tuning.designers.exhaustive_profiling import ExhaustiveProfiling
from oppa.tuning.profile import DEFAULT_LOSS, Profiler, rows
from oppa.tuning.stopping import StopTest, against, never, precise
from oppa.units import format_seconds

USUAL: Mapping[str, object] = {
    "model_chunks": [1, 2],
    "dp_bucket_mb": 25,
    "zero_bucket_mb": 24,
    "overlap_zero_comm": True,
    "overlap_zero_allgather": False,
    "overlap_p2p": True,
}
"""Frameworks' defaults, for knobs that hardly matter."""
JOBS = {
    "bert": ("16..1024", {**USUAL, "recompute": "none"}),
    "llama-2-7b": ("32..1024", {**USUAL, "recompute": "none"}),
    "llama-3.2-1b": ("16..512", USUAL),
    "moe": ("16..256", {**USUAL, "recompute": "none"}),
    "qwen2-1.5b": ("8..512", USUAL),
}
"""Simulated jobs on different clusters, by name: the batch sizes to profile, and the values that narrow the space."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedProfile:
    """Holds the result of a profile that ran to its end."""

    rows: Sequence[TableRow]
    trials: int
    seconds: float
    expected_loss: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProfileComparison:
    """Compares an active profile with an exhaustive one under the same noise."""

    job: str
    seed: int
    candidates: int
    batches: tuple[int, ...]
    active: SimulatedProfile
    exhaustive: SimulatedProfile
    regret: Regret

    @property
    def share(self) -> float:
        """Return the active profile's seconds over those of the exhaustive profile."""
        return self.active.seconds / self.exhaustive.seconds


def profile(repeats: int, names: Sequence[str] = tuple(JOBS)) -> list[Section]:
    """Compare the profiles of each job with `repeats` seeds, and return the record's sections."""
    return sections([compare(name, seed) for name in names for seed in range(repeats)])


def compare(name: str, seed: int) -> ProfileComparison:
    """Compare the profiles of one simulated job with one seed."""
    task = task_of(name)
    problem, candidates = task.problem, task.candidates
    active = ActiveProfiling(problem, candidates, seed=seed, bound=DEFAULT_LOSS)
    ours = simulate_profile(task, active, precise(problem.limits), seed=seed)
    theirs = simulate_profile(task, ExhaustiveProfiling(problem, candidates), never(problem.limits), seed=seed)
    batches = batches_of(problem.space)
    return ProfileComparison(
        job=name,
        seed=seed,
        candidates=len(candidates),
        batches=batches,
        active=dataclasses.replace(ours, expected_loss=active.loss.worst if active.loss else None),
        exhaustive=theirs,
        regret=regret(ours.rows, theirs.rows, task.simulator.steps_per_s, batches),
    )


def task_of(name: str) -> BenchmarkTask:
    """Return the task of one of JOBS."""
    batches, choices = JOBS[name]
    problem = load_job(catalog.find("runners", "simulated") / "jobs" / f"{name}.toml")
    space = problem.space
    for parameter, values in choices.items():
        space = space.restricted(parameter, *(values if isinstance(values, list) else [values]))
    problem = over(dataclasses.replace(problem, space=space), parse_batches(batches))
    return BenchmarkTask(name=name, problem=problem, candidates=problem.candidates(), simulator=Simulator.of(problem))


def simulate_profile(task: BenchmarkTask, profiler: Profiler, rule: StopTest, *, seed: int) -> SimulatedProfile:
    """Run a profiler on a task until it suggests no candidate.

    The noise of a trial depends only on seed, configuration and repeat.
    """
    tried: dict[int, int] = {}
    seconds = 0.0
    while (candidate := profiler.suggest(tried.keys())) is not None:
        prediction, repeat = profiler.predict(candidate), tried.get(candidate, 0)
        configuration = task.candidates.configuration(candidate)
        simulated = task.simulator.simulate_trial(configuration, steps=task.problem.limits.q_max, seed=seed + REPEAT * repeat)
        result = run_simulated(simulated, against(rule, ()))
        measured = result.estimate
        rate, variance = (measured.steps_per_s, measured.variance) if measured else (None, None)
        profiler.update([Observation.of_result(candidate, result, rate=rate, variance=variance, prediction=prediction)])
        tried[candidate] = repeat + 1
        seconds += result.seconds
    return SimulatedProfile(rows=rows(profiler.known(), task.candidates, ()), trials=sum(tried.values()), seconds=seconds)


def sections(found: Sequence[ProfileComparison]) -> list[Section]:
    """Return a table of each comparison, and one by trajectory."""
    return [_each(found), _trajectories(found)]


def _each(found: Sequence[ProfileComparison]) -> Section:
    mean, worst = statistics.fmean(each.regret.mean for each in found), max(each.regret.worst for each in found)
    return Section(
        title="An active profile, compared with an exhaustive one on simulated clusters",
        text="Regret is the goodput that decisions by the active table lose against those by the exhaustive one, along five trajectories "
        f"of the noise scale, in the simulator without noise. The mean is {mean:.2%} and the worst {worst:.2%}. The active profile takes "
        f"at most {max(each.share for each in found):.1%} of the exhaustive profile's seconds.",
        columns=(
            "job",
            ">seed",
            "batches",
            ">candidates",
            ">trials",
            ">of",
            ">seconds",
            ">of",
            ">share",
            ">expected loss",
            ">regret",
            ">worst",
        ),
        rows=[
            (
                each.job,
                each.seed,
                f"{each.batches[0]} to {each.batches[-1]}",
                each.candidates,
                each.active.trials,
                each.exhaustive.trials,
                format_seconds(each.active.seconds),
                format_seconds(each.exhaustive.seconds),
                f"{each.share:.1%}",
                "-" if each.active.expected_loss is None else f"{each.active.expected_loss:.2%}",
                f"{each.regret.mean:.2%}",
                f"{each.regret.worst:.2%}",
            )
            for each in found
        ],
    )


def _trajectories(found: Sequence[ProfileComparison]) -> Section:
    names = list(found[0].regret.by_trajectory)
    return Section(
        title="The same by trajectory",
        text="Mean and worst are over all profiles. A negative regret means that the active table decides better.",
        columns=("trajectory", ">mean", ">worst"),
        rows=[
            (name, f"{statistics.fmean(values):.2%}", f"{max(values):.2%}")
            for name in names
            for values in [[each.regret.by_trajectory[name] for each in found]]
        ],
    )
