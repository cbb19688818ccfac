"""Simulate DYNAMIX with 8, 16 and 32 workers (Table I), the growth of its rewards (Figure 3), and the spread of batches (Figure 5).

Each number of workers has its own policy, which is evaluated on workers of speeds that it was not trained on. All runs begin with the same
global batch. Runs are paired: each policy has the same workers, links and noise. Accuracy follows from progress alone in this simulator,
so the table compares the seconds to reach it, not the final accuracy.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.registry import DYNAMIX
from oppa.control.decision import Policy
from oppa.control.policies.proportional import ProportionalPolicy
from oppa.control.policies.static import StaticPolicy
from oppa.control.rl.actions import Actions
from oppa.control.rl.algorithms import ALGORITHMS, learned
from oppa.control.rl.episode import Episode, EpisodeTask, EvaluatedRun, evaluated_run
from oppa.control.rl.evaluation import SHARE, sizes
from oppa.control.rl.learner import cumulative
from oppa.control.rl.policy import LearnedPolicy
from oppa.control.rl.reward import Reward
from oppa.control.rl.weights import Weights
from oppa.random_streams import stream
from oppa.report.figures import Axis, Series, lines, standalone
from oppa.report.record import Section
from oppa.simulator.learning_curve import LearningCurve

CURVE = "digits"
PARAMETERS = 127_000
"""Weights of the model to which the learning curve belongs."""
CLUSTERS = tuple(map(int, DYNAMIX))
"""Numbers of workers (Table I)."""
GLOBAL_BATCH = 512
"""Initial samples per step, for every number of workers."""
WINDOW = 5
"""Steps between two decisions."""
EPISODES: Mapping[str, int] = {"ppo": 10, "paper": 2}
"""Training episodes per evaluation run, by algorithm; for ten runs, `paper` has the paper's 20 (section VI-C)."""
UNSEEN = 1_000_000
"""First seed of the evaluation runs; no policy is trained on these seeds."""
FORMS: Mapping[str, str] = {"ppo": "goodput", "paper": "paper"}
"""Reward of each algorithm: ours, and the paper's as written."""
LABELS: Mapping[str, str] = {"ppo": "learned by PPO", "paper": "learned as written"}
CONFIDENCE, RESAMPLES = 0.95, 9999


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LearnedPolicyResult:
    """Holds a policy and the rewards of its training."""

    task: EpisodeTask
    weights: Weights
    rewards: Sequence[NDArray[np.float64]]
    """Discounted cumulative reward of each worker of each run, episode by episode; each of shape (runs * workers,)."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class WorkerScale:
    """Holds the seconds of every policy in the same runs, for one number of workers."""

    workers: int
    seconds: Mapping[str, tuple[float | None, ...]]
    """Seconds of each run by policy; None if the run never reached the accuracy."""
    best_static: str
    best_shared: str

    def median(self, policy: str) -> float | None:
        """Return the median seconds over runs, or None if it is infinite because runs never reached the accuracy."""
        found = statistics.median(float("inf") if each is None else each for each in self.seconds[policy])
        return found if found < float("inf") else None

    def saved(self, policy: str, reference: str) -> tuple[float, float, float] | None:
        """Return the median share of time that a policy saves over another, run by run, and its 95% bootstrap interval.

        The result is (low, median, high), or None with fewer than two runs or where the median is infinite. A run that never reached the
        accuracy takes infinitely long: it loses against one that did, and ties with another.
        """
        pairs = zip(self.seconds[policy], self.seconds[reference], strict=True)
        shares = np.array([_saved(ours, theirs) for ours, theirs in pairs])
        if len(shares) < 2 or not math.isfinite(np.median(shares)):
            return None
        drawn = stream(0, "bootstrap").integers(len(shares), size=(RESAMPLES, len(shares)))
        levels = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
        low, high = np.quantile(np.median(shares[drawn], axis=1), levels, method="inverted_cdf")  # no mean of finite and infinite shares
        return float(low), float(np.median(shares)), float(high)


def _saved(ours: float | None, theirs: float | None) -> float:
    """Return the share of time that one run saves over another; a time of None is infinite."""
    if ours is None:
        return 0.0 if theirs is None else -math.inf
    return 1.0 if theirs is None else 1 - ours / theirs


def task_of(workers: int, form: str) -> EpisodeTask:
    """Return the job with this number of workers and this form of the reward."""
    local_batch = GLOBAL_BATCH // workers
    return EpisodeTask(
        curve=LearningCurve.load(CURVE),
        actions=Actions.scaled(local_batch),
        reward=Reward.usual(form),  # type: ignore[arg-type]
        workers=workers,
        local_batch=local_batch,
        window=WINDOW,
        gradient_bytes=4.0 * PARAMETERS,
    )


@functools.cache
def trained(workers: int, algorithm: str, episodes: int) -> LearnedPolicyResult:
    """Train a policy for this number of workers; a cache keeps it within the process."""
    task, rewards = task_of(workers, FORMS[algorithm]), list[NDArray[np.float64]]()

    def ended(_number: int, of_windows: NDArray[np.float64]) -> None:
        rewards.append(cumulative(of_windows)[0])

    weights = learned(task, algorithm, episodes=episodes, seed=0, provenance={"job": CURVE}, on_episode=ended)
    return LearnedPolicyResult(task=task, weights=weights, rewards=rewards)


@functools.cache
def scale(workers: int, runs: int) -> WorkerScale:
    """Evaluate all policies with this number of workers, in `runs` runs."""
    task = task_of(workers, FORMS["ppo"])
    found = dict[str, list[EvaluatedRun]]()
    for size in sizes(task.actions):
        found[f"static, {size} each"] = _evaluated_runs(task, StaticPolicy(), size, runs)
        found[f"proportional, {size} each"] = _evaluated_runs(task, ProportionalPolicy(window=WINDOW), size, runs)
    for algorithm in ALGORITHMS:
        policy = LearnedPolicy(weights=_policy(workers, algorithm, runs).weights)
        found[LABELS[algorithm]] = _evaluated_runs(task, policy, task.local_batch, runs)
    seconds = {name: tuple(each.seconds for each in of_policy) for name, of_policy in found.items()}
    fastest = functools.partial(_fastest, seconds)
    return WorkerScale(workers=workers, seconds=seconds, best_static=fastest("static"), best_shared=fastest("proportional"))


def sections(runs: int, tasks: Sequence[str] = DYNAMIX) -> list[Section]:
    """Return Table I, the rewards during training, and the spread of the batches; each task is a number of workers."""
    clusters = tuple(map(int, tasks))
    return [_scales(runs, clusters), _rewards(runs, clusters), _spread(runs, clusters)]


def figures(runs: int) -> dict[str, str]:
    """Return SVG by file name, for Figures 3 and 5."""
    return {"rewards.svg": standalone(_reward_figure(runs)), "batches.svg": standalone(_batch_figure(runs))}


def to_json(runs: int, tasks: Sequence[str] = DYNAMIX) -> dict[str, Any]:
    """Return Table I by number of workers, as fractions and seconds."""
    clusters = tuple(map(int, tasks))
    return {
        str(workers): {
            "policies": {name: found.median(name) for name in _shown(found)},
            "best_static": found.best_static,
            "saved": {name: found.saved(name, found.best_static) for name in _shown(found)[1:]},
        }
        for workers in clusters
        for found in [scale(workers, runs)]
    }


def _policy(workers: int, algorithm: str, runs: int) -> LearnedPolicyResult:
    return trained(workers, algorithm, EPISODES[algorithm] * runs)


def _evaluated_runs(task: EpisodeTask, policy: Policy, local_batch: int, runs: int) -> list[EvaluatedRun]:
    target, seeds = SHARE * task.curve.accuracy[-1], range(UNSEEN, UNSEEN + runs)
    return [evaluated_run(task, policy, task.hosts(seed, unseen=True), target=target, seed=seed, local_batch=local_batch) for seed in seeds]


def _fastest(seconds: Mapping[str, Sequence[float | None]], kind: str) -> str:
    def middle(name: str) -> float:
        return statistics.median(float("inf") if each is None else each for each in seconds[name])

    return min((name for name in seconds if name.startswith(kind)), key=middle)


def _shown(found: WorkerScale) -> list[str]:
    """Return the best static batch, followed by the policies that are compared with it."""
    return [found.best_static, found.best_shared, *(LABELS[algorithm] for algorithm in ALGORITHMS)]


def _scales(runs: int, clusters: Sequence[int]) -> Section:
    text = (
        f"{runs} runs start from {GLOBAL_BATCH} samples a step on simulated workers of uneven speed, on which no policy was trained. "
        f"Seconds are medians over runs until {SHARE:.0%} of the last accuracy of the `{CURVE}` curve. `saved` is the share of the best "
        "static batch's seconds, run by run: the median with its 95% bootstrap interval; negative if the static batch is faster. "
        f"PPO learns in {EPISODES['ppo'] * runs} episodes with the `{FORMS['ppo']}` reward; the paper's algorithm as written learns in "
        f"{EPISODES['paper'] * runs} episodes."
    )
    rows = []
    for workers in clusters:
        found = scale(workers, runs)
        for name in _shown(found):
            reached = sum(each is not None for each in found.seconds[name])
            saved = None if name == found.best_static else found.saved(name, found.best_static)
            rows.append(
                (
                    workers if name == found.best_static else "",
                    name,
                    _seconds(found.median(name)),
                    f"{saved[1]:+.1%} [{saved[0]:+.1%}, {saved[2]:+.1%}]" if saved else "",
                    f"{reached} of {runs}",
                )
            )
    columns = (">workers", "policy", ">seconds", ">saved", ">runs that reach it")
    return Section(title="More workers (Table I)", text=text, columns=columns, rows=rows)


def _rewards(runs: int, clusters: Sequence[int]) -> Section:
    text = (
        "The table shows the discounted cumulative reward of a worker in the first and the last five training episodes (Figure 3). It is "
        "the mean over episodes of the mean and the median over workers. The spread is the standard deviation over workers. The two "
        "rewards have different units."
    )
    rows = []
    for workers in clusters:
        for algorithm in ALGORITHMS:
            found = _policy(workers, algorithm, runs).rewards
            for name, part in (("first", found[:5]), ("last", found[-5:])):
                means = (np.mean([of(each) for each in part]) for of in (np.mean, np.median, np.std))
                rows.append((workers, LABELS[algorithm], name, *(f"{mean:.3f}" for mean in means)))
    columns = (">workers", "policy", "episodes", ">mean", ">median", ">spread")
    return Section(title="Rewards during training (Figure 3)", text=text, columns=columns, rows=rows)


def _spread(runs: int, clusters: Sequence[int]) -> Section:
    text = (
        "The table shows local batches under the policy learned by PPO, in the first evaluation run of each cluster (Figure 5). They are "
        "means and standard deviations over workers at the first, the middle and the last window."
    )
    rows = []
    for workers in clusters:
        course = _course(workers, runs)
        for name, index in (("first", 0), ("middle", len(course) // 2), ("last", len(course) - 1)):
            rows.append((workers, name, index + 1, f"{course[index].mean():.1f}", f"{course[index].std():.1f}"))
    columns = (">workers", "when", ">window", ">mean batch", ">spread")
    return Section(title="Batches over workers (Figure 5)", text=text, columns=columns, rows=rows)


@functools.cache
def _course(workers: int, runs: int) -> Sequence[NDArray[np.float64]]:
    """Return the local batches of the first evaluation run under the policy trained by PPO, window by window; each of shape (workers,)."""
    found = _policy(workers, "ppo", runs)
    policy, target = LearnedPolicy(weights=found.weights), SHARE * found.task.curve.accuracy[-1]
    episode = Episode(found.task, found.task.hosts(UNSEEN, unseen=True), seed=UNSEEN)
    course = [np.array(episode.local_batches, float)]
    while episode.accuracy < target and len(course) < 2000:
        decision = policy.decide(episode.state)
        episode.step(decision.local_batches or episode.local_batches)
        course.append(np.array(episode.local_batches, float))
    return course


def _reward_figure(runs: int) -> str:
    def series(of: Callable[[NDArray[np.float64]], Any], name: str, found: LearnedPolicyResult) -> Series:
        return _band(
            name, np.array([of(each) for each in found.rewards]), [each.std() if name == "mean" else 0.0 for each in found.rewards]
        )

    panels = {
        f"{workers} workers, {LABELS[algorithm]}": [series(np.mean, "mean", found), series(np.median, "median", found)]
        for algorithm in ALGORITHMS
        for workers in CLUSTERS
        for found in [_policy(workers, algorithm, runs)]
    }
    caption = "Cumulative reward by training episode: mean over workers with its standard deviation, and median (DYNAMIX, figure 3)"
    return lines(panels, x=Axis(label="episode"), y=Axis(label="cumulative reward"), description=caption)


def _batch_figure(runs: int) -> str:
    panels = {}
    for workers in CLUSTERS:
        course = _course(workers, runs)
        panels[f"{workers} workers"] = [_band("mean", np.array([each.mean() for each in course]), [each.std() for each in course])]
    caption = "Local batch by window: mean over workers with its standard deviation (DYNAMIX, figure 5)"
    return lines(panels, x=Axis(label="window"), y=Axis(label="samples of a worker"), description=caption)


def _band(name: str, middle: NDArray[np.float64], spread: Sequence[float]) -> Series:
    low, high = (middle - spread).tolist(), (middle + spread).tolist()
    return Series(name=name, x=list(range(1, len(middle) + 1)), y=middle.tolist(), low=low, high=high)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.3g}"
