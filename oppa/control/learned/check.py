"""Whether a learned policy would have done worse than the one in force, by runs that were recorded under neither (off-policy).

The runs are those of an exploring policy, which draws each worker's step by lot. Of each window and worker the run then knows one step and
what it was worth; what another would have been worth is estimated doubly robustly (Dudik, Langford and Li 2011):

    V(pi)  =  mean of  q(s, pi(s))  +  1[a = pi(s)] / mu(a) (r - q(s, a))

Notation (N windows of single workers):
    s, a, r    what the worker said and what that window was worth, the step that was drawn, the reward of the window behind it
    mu         the probability of the step: 1 / (number of steps), and more where bounds make several alike
    q          a linear model of r for each step, of runs that are not looked at (cross-fitted)

Both policies are valued on the same windows, so the interval of their difference (a bootstrap over windows) knows what they share. It looks
one window ahead: what a step does to later windows it does not see.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oppa.control.decision import HEALTHY, Policy, Situation
from oppa.control.learned.actions import Actions
from oppa.control.learned.observation import observations
from oppa.control.learned.policy import LearnedPolicy
from oppa.control.learned.reward import Reward, sample_s
from oppa.control.learned.weights import Weights
from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.protocol.worker import WorkerState
from oppa.streams import stream
from oppa.training import ledger
from oppa.training.ledger import Line

Array = NDArray[np.float64]

LEAST_WINDOWS = 30
"""Fewer say nothing."""
MARGIN = 0.1
"""Standard deviations of the reward that a policy may be worth less, and still count as not worse."""
LEVEL = 0.05
FOLDS, RIDGE, RESAMPLES = 5, 10.0, 2000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A window of a run, what was drawn behind it, and what that was worth."""

    situation: Situation
    chosen: tuple[int, ...]
    """The number of a step for each worker; of those that bounds make alike, the smallest."""
    probabilities: tuple[float, ...]
    """Of these."""
    rewards: tuple[float, ...]
    """Of each worker, in the window behind it; at the noise that was known when the step was drawn, which no step changes."""
    before: tuple[float, ...]
    """The same of the window that the situation tells of: most of what the next one will be."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What recorded runs say of a policy against another."""

    gain: float
    """By how much a worker's window is worth more under it."""
    low: float
    high: float
    """The interval of that, of 90%."""
    margin: float
    """What it may be worth less."""
    windows: int
    agreeing: int
    """Windows of single workers in which the drawn step was the policy's own."""

    @property
    def passed(self) -> bool:
        """Whether it is not worse."""
        return self.low >= -self.margin

    @property
    def words(self) -> str:
        """For people."""
        interval = f"{self.gain:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"
        seen = f"{self.windows} windows, in which {self.agreeing} workers drew the step that it would have taken"
        return f"a worker's window is worth {interval} more, and may be worth {self.margin:.3f} less ({seen})"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**dataclasses.asdict(self), "passed": self.passed}


def recorded(lines: Iterable[Line], actions: Actions, reward: Reward) -> list[Recorded]:
    """What an exploring run's ledger tells."""
    situations = list(_situations(lines))
    if not situations:
        return []
    first_s = sample_s(situations[0])
    found = []
    for before, behind in itertools.pairwise(situations):
        if len(before.workers) != len(behind.workers):  # another attempt, with other ranks
            continue
        sizes = [[worker.local_batch for worker in each.workers] for each in (before, behind)]
        chosen = actions.chosen(*sizes)
        likely = tuple(actions.alike(batch, number) / len(actions.steps) for batch, number in zip(sizes[0], chosen, strict=True))
        noise = {name: getattr(before, name) for name in ("noise_scale", "health", "variance_ratio")}
        rewards, early = (
            tuple(reward.of(each, least=actions.least, first_sample_s=first_s)) for each in (dataclasses.replace(behind, **noise), before)
        )
        found.append(Recorded(situation=before, chosen=tuple(chosen), probabilities=likely, rewards=rewards, before=early))
    return found


def verdict(runs: Sequence[Sequence[Recorded]], weights: Weights, in_force: Policy) -> Verdict:
    """A learned policy against the one in force.

    Raises:
        InputError: for fewer than LEAST_WINDOWS windows.
    """
    windows = [each for run in runs for each in run]
    if len(windows) < LEAST_WINDOWS:
        hint = "record longer ones: `oppa train JOB --policy explore --weights FILE`"
        raise InputError(f"the recorded runs have {len(windows)} windows, and fewer than {LEAST_WINDOWS} say nothing", hint=hint)
    actions = weights.actions
    rows = [np.column_stack((weights.normalised(observations(each.situation, actions)), each.before)) for each in windows]
    own, other = ([_steps(policy, each.situation, actions) for each in windows] for policy in (LearnedPolicy(weights=weights), in_force))
    valued = _values(rows, windows, (own, other), len(actions.steps))
    differences = np.array([first - second for first, second in zip(*valued, strict=True)])
    picks = stream(0, "bootstrap").integers(len(differences), size=(RESAMPLES, len(differences)))
    low, high = np.quantile(differences[picks].mean(1), [LEVEL, 1 - LEVEL])
    spread = float(np.std([reward for each in windows for reward in each.rewards]))
    return Verdict(
        gain=float(differences.mean()),
        low=float(low),
        high=float(high),
        margin=MARGIN * spread,
        windows=len(windows),
        agreeing=sum(one == drawn for each, mine in zip(windows, own, strict=True) for one, drawn in zip(mine, each.chosen, strict=True)),
    )


def _values(
    rows: Sequence[Array], windows: Sequence[Recorded], policies: tuple[Sequence[Sequence[int]], ...], steps: int
) -> tuple[list[float], ...]:
    """Of each window under each policy, the mean over its workers."""
    found: tuple[list[float], ...] = tuple([0.0] * len(windows) for _ in policies)
    order = stream(0, "folds").permutation(len(windows))
    for fold in range(FOLDS):
        held = set(order[fold::FOLDS].tolist())
        q = _model([(rows[i], windows[i]) for i in range(len(windows)) if i not in held], steps)
        for index in held:
            drawn, rewards = np.array(windows[index].chosen), np.array(windows[index].rewards)
            expected, each = q(rows[index]), np.arange(len(drawn))
            for values, chosen in zip(found, policies, strict=True):
                wanted = np.array(chosen[index])
                corrected = (drawn == wanted) / np.array(windows[index].probabilities) * (rewards - expected[each, drawn])
                values[index] = float((expected[each, wanted] + corrected).mean())
    return found


def _model(known: Sequence[tuple[Array, Recorded]], steps: int) -> Callable[[Array], Array]:
    """Rewards of each step, (n, steps), by observations (n, d): ridge regression, one for all steps and what each adds to it."""

    def features(rows: Array) -> Array:
        return np.column_stack((np.ones(len(rows)), rows))

    seen = np.concatenate([features(rows) for rows, _ in known])
    drawn = np.concatenate([each.chosen for _, each in known])
    rewards = np.concatenate([each.rewards for _, each in known])
    common = ridge(seen, rewards)
    own = [ridge(seen[drawn == step], (rewards - seen @ common)[drawn == step]) for step in range(steps)]
    return lambda rows: np.column_stack([features(rows) @ (common + each) for each in own])


def ridge(seen: Array, wanted: Array) -> Array:
    """Coefficients (d,) of a ridge regression of values (n,) on features (n, d)."""
    return np.asarray(np.linalg.solve(seen.T @ seen + RIDGE * np.eye(seen.shape[1]), seen.T @ wanted))


def _steps(policy: Policy, situation: Situation, actions: Actions) -> list[int]:
    """The numbers of the steps that come closest to what a policy wants."""
    before = [worker.local_batch for worker in situation.workers]
    return actions.chosen(before, policy.decide(situation).local_batches or before)


def _situations(lines: Iterable[Line]) -> Iterable[Situation]:
    """The windows of a run."""
    losses, accuracy, ratio = list[float](), None, None
    for line in lines:
        if line["event"] == ledger.VALIDATED:
            accuracy = line.get("accuracy")
        if line["event"] in (ledger.STARTED, ledger.CHANGED):
            losses = []
        if line["event"] != ledger.STEP:
            continue
        if workers := line.get("workers"):
            states = tuple(WorkerState.from_dict(each) for each in workers)
            batches = tuple(each.local_batch for each in states)
            yield Situation(
                configuration=Configuration(dp=len(states), global_batch=sum(batches), micro_batch=line["micro_batch"]),
                noise_scale=line.get("noise_scale"),
                health=line.get("health", HEALTHY),
                variance_ratio=ratio,
                local_batches=batches,
                workers=states,
                losses=tuple(losses),
                accuracy=accuracy,
                samples=line["samples"][1],
            )
            losses = []
        if line["loss"] is not None:
            losses.append(line["loss"])
        ratio = line.get("variance_ratio") if line.get("variance_ratio") is not None else ratio
