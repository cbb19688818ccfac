"""Grow SMAC's random forest (Hutter et al. 2011) on the cost model's errors, with more trees than SMAC3 has, for their spread."""

import functools

import numpy as np
from ConfigSpace import ConfigurationSpace

from experiments.baselines.physics_forest import PhysicsForest, Values
from experiments.baselines.smac_forest import random_forest

TREES = 50


def grow(x: Values, y: Values, at: Values, seed: int) -> Values:
    """Return what each tree predicts. The space names one column per feature; trees ignore its bounds."""
    space = ConfigurationSpace({f"x{column}": (0.0, 1.0) for column in range(x.shape[1])})
    forest = random_forest(space, trees=TREES, observations=len(y), seed=seed)
    forest.train(x, y)
    assert forest._rf is not None  # its public prediction gives the mean and the variance over trees alone
    return np.asarray(forest._rf.all_trees_pred(at)).T


smac_physics = functools.partial(PhysicsForest, grow=grow)
"""The designer `smac-physics`."""
