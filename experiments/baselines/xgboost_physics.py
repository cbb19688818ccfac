"""Grow XGBoost's boosted trees (Chen and Guestrin 2016) on the cost model's error, at the library's own settings.

One ensemble gives no spread. So several are grown, each on a bootstrap sample of the trials (Efron 1979), and their spread counts.
"""

import numpy as np
import xgboost

from experiments.baselines.physics_forest import PhysicsForest, Values
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem

ENSEMBLES = 20
ROUNDS = 30


def xgboost_physics(problem: Problem, candidates: Candidates, *, seed: int) -> PhysicsForest:
    """Return the designer `xgboost-physics`."""
    return PhysicsForest(problem, candidates, seed=seed, grow=grow)


def grow(x: Values, y: Values, at: Values, seed: int) -> Values:
    """Return what each ensemble predicts."""
    rng, parameters = np.random.default_rng(seed), {"base_score": float(y.mean()), "nthread": 1}
    samples = [rng.integers(len(y), size=len(y)) for _ in range(ENSEMBLES)]
    grown = (xgboost.train(parameters, xgboost.DMatrix(x[sample], y[sample]), num_boost_round=ROUNDS) for sample in samples)
    return np.stack([trees.predict(xgboost.DMatrix(at)).astype(np.float64) for trees in grown])
