"""Active profiling: measures only those (S, B_g, B_m) whose throughput could change what a controller chooses.

One surrogate, that of `oppa`, covers all batch sizes. The value of a trial is the expected decrease of the expected loss of goodput, over
the seconds that the trial is expected to take. A step of a small batch is cheap, and still informs about the costs per step and per
sequence of its strategy.

A measured candidate counts as known and is never measured again, since an exhaustive profile would not be more precise about it. The
profile ends when every choice was measured and the expected loss is within the bound. The bound holds at every noise scale, as training
may stay at any of them.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence, Set

import torch
from torch import Tensor

from oppa.problem.batches import batches_of
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem
from oppa.problem.training import Limits
from oppa.study import Prediction
from oppa.table.origin import Method
from oppa.tuning import expected_loss
from oppa.tuning.designer import Known, Observation, by_candidate, failing, free, groups
from oppa.tuning.designers.choice import probability_fits
from oppa.tuning.designers.oppa import FAILURES_IN_A_ROW, Oppa
from oppa.tuning.designers.random_search import RandomSearch
from oppa.tuning.designers.targets import trial_variance
from oppa.tuning.stopping import StopTest, until_precise
from oppa.tuning.surrogate.distributions import Joint, Normal

SAFE = 0.99
"""Probability of fitting from which a configuration that never ran may be chosen."""
CONTENDERS, WEIGHED = 384, 192
"""Number of candidates in a joint posterior, and number of trials that are valued. All others are worth almost nothing."""
ODD, ODD_STDDEV = 0.01, 0.2
"""Probability that a configuration is an outlier that no model explains, and the standard deviation of its log throughput then."""
SETUP_S, STEPS, GUESSES = 15.0, 10, 2
"""Values before the first trials: seconds of a trial outside its steps, and steps until it is precise. Each weighs as GUESSES trials."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GoodputLoss:
    """Holds the expected loss of goodput, as a share of the best: the mean over all noise scales, and the worst of them."""

    mean: float
    worst: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _View:
    """Holds a snapshot of the posterior at all N candidates, and of a controller's choices at k noise scales."""

    rate: Normal
    fits: Tensor
    allowed: Tensor
    chosen: Tensor
    promises: Tensor
    """Share by which each candidate alone is expected to exceed the choice, shape (k, N)."""

    @property
    def contenders(self) -> Tensor:
        """Return the numbers of the candidates that may be better than the choice, and of the choices, ascending."""
        return torch.as_tensor(torch.cat([_largest(self.promises.mean(dim=0), CONTENDERS), self.chosen]).unique())


class ActiveProfiling:
    """Implements active profiling."""

    method: Method = "active"

    def __init__(self, problem: Problem, candidates: Candidates, *, seed: int, bound: float) -> None:
        """Prepare a profile.

        Args:
            bound: Largest accepted expected loss of goodput, as a share.
        """
        self._surrogate = Oppa(problem, candidates, seed=seed, doubts=False)
        self.bound = bound
        self._chance = RandomSearch(problem, candidates, seed=seed)
        self._batches = torch.from_numpy(candidates.column("global_batch").astype("float64"))
        self._weights = expected_loss.log_weights(self._batches, expected_loss.noise_scales(batches_of(candidates.space)))
        self._strategies = torch.from_numpy(groups(candidates, [name for name in candidates.space.names if not name.endswith("_batch")]))
        self._q_max = problem.limits.q_max
        self._seen: list[Observation] = []
        self.loss: GoodputLoss | None = None
        """The loss as last assessed; None before anything was measured."""

    @property
    def pruned(self) -> int:
        """Return the number of candidates without a trial that are ruled out by one that ran out of memory."""
        return self._surrogate.pruning.spared

    def stop_test(self, limits: Limits) -> StopTest:
        """Return the test that completes a trial once its throughput is precise."""
        return until_precise(limits)

    @property
    def satisfied(self) -> bool:
        """Return whether the expected loss, as last assessed, is within the bound at every noise scale."""
        return self.loss is not None and self.loss.worst <= self.bound

    def update(self, observations: Sequence[Observation]) -> None:
        """Learn from trials that ended."""
        self._seen += observations
        self._surrogate.update(observations)

    def predict(self, candidate: int) -> Prediction:
        """Return the prediction for a trial of the candidate."""
        return self._surrogate.predict(candidate)

    def suggest(self, taken: Set[int]) -> int | None:
        """Return the candidate whose trial is worth most per second; None if the profile is complete, or nothing is left."""
        rows = torch.from_numpy(free(len(self._batches), taken))
        rows = rows[~self._surrogate.infeasible[rows]]
        measured = self._measured()
        if len(rows) and failing(self._seen, FAILURES_IN_A_ROW):
            return self._chance.suggest(taken | set(self._surrogate.infeasible.nonzero()[:, 0].tolist()))
        if not measured:
            return self._first(rows) if len(rows) else None
        view, losses = self._assessed()
        if self.satisfied:
            unmeasured = [each for each in view.chosen.tolist() if each not in measured]
            return statistics.mode(unmeasured) if unmeasured else None
        return self._worth_most(view, losses > self.bound, rows)

    def assess(self) -> None:
        """Assess the present expected loss if a trial was measured."""
        if self._measured():
            self._assessed()

    def _assessed(self) -> tuple[_View, Tensor]:
        """Assess the present expected loss; return the snapshot, and the loss at each noise scale, shape (k,)."""
        view = self._view()
        contenders = view.contenders
        generator = torch.Generator().manual_seed(1)
        draws = expected_loss.draw_normal(self._jointly(contenders))
        odd = (torch.rand(draws.shape, generator=generator) < ODD) * torch.randn(draws.shape, generator=generator, dtype=torch.float64)
        fitting = torch.rand(draws.shape, generator=generator, dtype=torch.float64) < view.fits[contenders]
        losses = expected_loss.expected_loss(
            draws + odd * self._odd_variance()[contenders].sqrt(),
            fitting,
            self._weights[:, contenders],
            torch.searchsorted(contenders, view.chosen),
        )
        self.loss = GoodputLoss(mean=float(losses.mean()), worst=float(losses.max()))
        return view, losses

    def known(self) -> list[Known]:
        """Return the entries of a table: all candidates that ran, and per strategy and batch the fastest that fits safely, tried or not."""
        measured = self._measured()
        if not measured:
            return []
        rate, fits = self._belief()
        reported = self._surrogate.reported_bytes()
        alike: dict[tuple[int, float], list[int]] = {}
        for candidate in (fits >= SAFE).nonzero()[:, 0].tolist():
            alike.setdefault((int(self._strategies[candidate]), float(self._batches[candidate])), []).append(candidate)
        fastest = {max(group, key=lambda each: float(rate.mean[each])) for group in alike.values()}
        return [self._row(each, rate, float(reported[each]), measured=each in measured) for each in sorted(fastest | measured.keys())]

    def seconds_of_all(self) -> float:
        """Return the seconds that full trials of all candidates would take. The steps of each count with its probability of fitting."""
        rate, fits = self._belief()
        return float((self._setup_s() + fits * self._q_max * (-rate.mean).exp()).sum())

    def _row(self, candidate: int, rate: Normal, reported_bytes: float, *, measured: bool) -> Known:
        own = [seen.memory_bytes for seen in self._seen if seen.candidate == candidate] if measured else [round(reported_bytes)]
        return Known(
            candidate=candidate,
            log_rate=float(rate.mean[candidate]),
            log_stddev=float(rate.stddev[candidate]),
            memory_bytes=own[-1],
            measured=measured,
        )

    def _measured(self) -> dict[int, list[Observation]]:
        """Return the measured candidates with their trials, without those of which a trial failed or ran out of memory."""
        return {candidate: seen for candidate, seen in by_candidate(self._seen).items() if all(each.measured for each in seen)}

    def _belief(self) -> tuple[Normal, Tensor]:
        """Return the throughput of each candidate, nuggets included, and its probability of fitting, shapes (N,)."""
        process = self._surrogate.log_rate
        rate, known = process.of_candidates(slice(None)), process.of_observed()
        mean, stddev = rate.mean.clone(), rate.stddev.clone()
        mean[process.observed], stddev[process.observed] = known.mean, known.stddev
        return Normal(mean, stddev * self._surrogate.widening), self._fits()

    def _jointly(self, rows: Tensor) -> Joint:
        joint = self._surrogate.log_rate.jointly(rows)
        widened = Joint(joint.mean, joint.covariance * self._surrogate.widening**2)
        return expected_loss.knowing(widened, torch.isin(rows, torch.tensor(list(self._measured()))))

    def _fits(self) -> Tensor:
        """Return each candidate's probability of fitting, shape (N,).

        It is 1 for candidates that ran, and 0 for those that did not or are ruled out. The others may be outliers.
        """
        fits = probability_fits(self._surrogate.log_slack.of_candidates(slice(None), bounded=True))
        fits[self._surrogate.infeasible] = 0.0
        fits[[seen.candidate for seen in self._seen]] = 0.0
        fits[list(self._measured())] = 1.0
        return fits

    def _odd_variance(self) -> Tensor:
        """Return the variance of an outlier for candidates that never ran, and 0 for the others, shape (N,)."""
        variance = torch.full_like(self._batches, ODD_STDDEV**2)
        variance[[seen.candidate for seen in self._seen]] = 0.0
        return variance

    def _view(self) -> _View:
        rate, fits = self._belief()
        rate.stddev[list(self._measured())] = 1e-6
        allowed = fits >= SAFE
        chosen = expected_loss.choices(rate.mean, allowed, self._weights)
        odd = Normal(rate.mean, (rate.stddev.square() + self._odd_variance()).sqrt())
        promises = [expected_loss.promise(each, fits, self._weights, chosen) for each in (rate, odd)]
        return _View(rate=rate, fits=fits, allowed=allowed, chosen=chosen, promises=(1 - ODD) * promises[0] + ODD * promises[1])

    def _first(self, rows: Tensor) -> int:
        """Return the first candidate to measure: the most promising one at the smallest batch that is left."""
        return self._surrogate.most_promising(rows[self._batches[rows] == self._batches[rows].min()])

    def _worth_most(self, view: _View, pressing: Tensor, able: Tensor) -> int | None:
        """Return the candidate whose trial is worth most per second; None if nothing can be better.

        Args:
            pressing: Mask of the noise scales at which the bound is not met yet, shape (k,). Only these count.
            able: Numbers of the candidates that may be tried.
        """
        seconds, weights = self._seconds(view.rate), self._weights[pressing]
        rows = self._worth_weighing(view, view.promises[pressing].mean(dim=0), seconds, able)
        if not len(rows):
            return None
        both = torch.cat([view.contenders, rows]).unique()
        joint, place = self._jointly(both), torch.searchsorted(both, rows)
        noise = torch.full((len(rows),), trial_variance(self._seen), dtype=torch.float64)
        plain, odd = (
            expected_loss.value_of_trials(
                joint, fits=view.fits[both], allowed=view.allowed[both], weights=weights[:, both], tried=place, noise=noise, own=own
            )
            for own in (torch.zeros_like(noise), self._odd_variance()[rows])
        )
        values = (1 - ODD) * plain + ODD * odd
        if not (values > 0).any():  # no single trial would change a choice: take the largest promise
            values = view.promises[pressing].mean(dim=0)[rows]
        return int(rows[(values / seconds[rows]).argmax()])

    def _worth_weighing(self, view: _View, promises: Tensor, seconds: Tensor, able: Tensor) -> Tensor:
        """Return the numbers of the candidates whose trials are valued.

        These are the most promising per second, and the cheapest of the most promising strategies.
        """
        promised = torch.zeros_like(promises)
        promised[able] = promises[able] * (view.fits[able] > 0)
        best = torch.zeros(int(self._strategies.max()) + 1, dtype=torch.float64)
        best = best.scatter_reduce(0, self._strategies, promised, "amax")
        kin = torch.zeros_like(promised)
        kin[able] = best[self._strategies[able]] * view.fits[able]
        return torch.as_tensor(torch.cat([_largest(each / seconds, WEIGHED // 2) for each in (promised, kin)]).unique())

    def _seconds(self, rate: Normal) -> Tensor:
        """Return the seconds that a trial of each candidate is expected to take, shape (N,)."""
        steps = _mean((len(seen.step_times_s) for seen in self._seen if seen.measured), min(STEPS, self._q_max))
        return self._setup_s() + steps * (-rate.mean).exp()

    def _setup_s(self) -> float:
        return _mean((max(0.0, seen.seconds - math.fsum(seen.step_times_s)) for seen in self._seen), SETUP_S)


def _mean(seen: Iterable[float], guess: float) -> float:
    """Return the mean of what was seen and of a guess that weighs as GUESSES observations."""
    return statistics.fmean([guess] * GUESSES + list(seen))


def _largest(values: Tensor, count: int) -> Tensor:
    """Return the numbers of the largest positive values, at most `count`."""
    found = values.topk(min(count, len(values))).indices
    return found[values[found] > 0]
