"""Grow scikit-learn's random forest (Breiman 2001) on the cost model's error, at the library's own settings."""

import numpy as np
from sklearn.ensemble import RandomForestRegressor

from experiments.baselines.physics_forest import PhysicsForest, Values
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem


def forest_physics(problem: Problem, candidates: Candidates, *, seed: int) -> PhysicsForest:
    """Return the designer `forest-physics`."""
    return PhysicsForest(problem, candidates, seed=seed, grow=grow)


def grow(x: Values, y: Values, at: Values, seed: int) -> Values:
    """Return what each tree predicts."""
    forest = RandomForestRegressor(random_state=seed).fit(x, y)
    return np.stack([tree.predict(at) for tree in forest.estimators_])
