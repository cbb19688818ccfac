"""Grow scikit-learn's random forest (Breiman 2001) on the cost model's error, at the library's own settings."""

import functools

import numpy as np
from sklearn.ensemble import RandomForestRegressor

from experiments.baselines.physics_forest import PhysicsForest, Values


def grow(x: Values, y: Values, at: Values, seed: int) -> Values:
    """Return what each tree predicts."""
    forest = RandomForestRegressor(random_state=seed).fit(x, y)
    return np.stack([tree.predict(at) for tree in forest.estimators_])


forest_physics = functools.partial(PhysicsForest, grow=grow)
"""The designer `forest-physics`."""
