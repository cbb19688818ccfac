"""Searches by gradient-boosted trees, as DeepSpeed's autotuner does (model_based_tuner.py and cost_model.py; OPPA App. H.2).

After the first, random trials, trees are fitted to rank what was tried; a failure counts as a throughput of zero. The candidate with the
highest rank is tried next, but one in five choices is random, as in DeepSpeed. After few trials the trees rank many candidates equally;
ties are broken at random. DeepSpeed gives its trees the numbers of a configuration file. Here they get the encoded candidates, like every
model.
"""

from collections.abc import Sequence, Set

import numpy as np
import xgboost

from oppa.problem.candidates import Candidates
from oppa.problem.encoding import encode
from oppa.problem.problem import Problem
from oppa.random_streams import stream
from oppa.tuning.designer import Observation, at_random, free
from oppa.tuning.designers.random_search import RandomSearch

RANDOM_TRIALS = 5
"""Number of random first trials, as for the other peers; DeepSpeed has 2."""
EXPLORATION = 0.2
ROUNDS = 10
PARAMETERS = {
    "objective": "rank:pairwise",
    "max_depth": 3,
    "eta": 0.3,
    "gamma": 1e-4,
    "min_child_weight": 1,
    "subsample": 1.0,
    "lambda": 1.0,
    "alpha": 0,
    "verbosity": 0,
    "nthread": 1,
}
"""The parameters of DeepSpeed, except for the number of threads."""


class XGBoostRanking:
    """Implements the designer `xgboost`."""

    def __init__(self, problem: Problem, candidates: Candidates, *, seed: int) -> None:
        self._x = encode(candidates)
        self._chance = RandomSearch(problem, candidates, seed=seed)
        self._seed = seed
        self._seen: list[Observation] = []

    def update(self, observations: Sequence[Observation]) -> None:
        """Store how trials ended; the trees are grown when a suggestion is requested."""
        self._seen += observations

    def suggest(self, taken: Set[int]) -> int | None:
        """Return the free candidate with the highest rank; sometimes a random one."""
        rows, rng = free(len(self._x), taken), stream(self._seed, f"xgboost/{len(taken)}")
        if not len(rows) or at_random(self._seen, first=RANDOM_TRIALS, failures=len(self._seen) + 1) or rng.random() < EXPLORATION:
            return self._chance.suggest(taken)
        ranks = self._grown().predict(xgboost.DMatrix(self._x[rows]))
        return int(rng.choice(rows[ranks == ranks.max()]))

    def predict(self, candidate: int) -> None:
        """Return None, as a rank is not a throughput."""

    def _grown(self) -> xgboost.Booster:
        rates = np.exp([-np.inf if seen.log_steps_per_s is None else seen.log_steps_per_s for seen in self._seen])
        return xgboost.train(
            PARAMETERS, xgboost.DMatrix(self._x[[seen.candidate for seen in self._seen]], rates / rates.max()), num_boost_round=ROUNDS
        )
