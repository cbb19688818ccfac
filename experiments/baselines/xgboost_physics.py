"""Grow XGBoost's boosted trees (Chen and Guestrin 2016) on the cost model's error, at the library's own settings.

One ensemble gives no spread. So several are grown, each on a bootstrap sample of the trials (Efron 1979), and their spread counts.
"""

import functools

import numpy as np
import xgboost

from experiments.baselines.physics_forest import PhysicsForest, Values

ENSEMBLES = 20
ROUNDS = 30


def grow(x: Values, y: Values, at: Values, seed: int) -> Values:
    """Return what each ensemble predicts."""
    rng, parameters = np.random.default_rng(seed), {"base_score": float(y.mean()), "nthread": 1}
    samples = [rng.integers(len(y), size=len(y)) for _ in range(ENSEMBLES)]
    grown = (xgboost.train(parameters, xgboost.DMatrix(x[sample], y[sample]), num_boost_round=ROUNDS) for sample in samples)
    return np.stack([trees.predict(xgboost.DMatrix(at)).astype(np.float64) for trees in grown])


xgboost_physics = functools.partial(PhysicsForest, grow=grow)
"""The designer `xgboost-physics`."""
