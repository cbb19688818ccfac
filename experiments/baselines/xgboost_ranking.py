"""Search by gradient-boosted trees, as DeepSpeed's autotuner does (model_based_tuner.py and cost_model.py; OPPA App. H.2).

After the first, random trials (DeepSpeed has two), trees are fitted to rank what was tried; a failure counts as a throughput of zero. The
candidate with the highest rank is tried next, but one in five choices is random, as in DeepSpeed. After few trials the trees rank many
candidates equally; ties are broken at random. DeepSpeed gives its trees the numbers of a configuration file. Here they get the encoded
candidates, like every model.
"""

from collections.abc import Set

import numpy as np
import xgboost
from numpy.typing import NDArray

from experiments.baselines.random_first import RandomFirst
from oppa.problem.candidates import Candidates
from oppa.problem.encoding import encode
from oppa.problem.problem import Problem

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


class XGBoostRanking(RandomFirst):
    """Implements the designer `xgboost`."""

    stream = "xgboost"

    def __init__(self, problem: Problem, candidates: Candidates, *, seed: int) -> None:
        super().__init__(problem, candidates, seed=seed)
        self._x = encode(candidates)

    def _choose(self, rows: NDArray[np.int64], taken: Set[int], rng: np.random.Generator) -> int | None:
        """Return the free candidate with the highest rank; sometimes a random one."""
        if rng.random() < EXPLORATION:
            return self._chance.suggest(taken)
        ranks = self._grown().predict(xgboost.DMatrix(self._x[rows]))
        return int(rng.choice(rows[ranks == ranks.max()]))

    def _grown(self) -> xgboost.Booster:
        tried = self._x[[seen.candidate for seen in self._seen]]
        return xgboost.train(PARAMETERS, xgboost.DMatrix(tried, self._shares()), num_boost_round=ROUNDS)
