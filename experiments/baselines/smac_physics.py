"""Grows SMAC's random forest (Hutter et al. 2011; SMAC3: Lindauer et al. 2022) on the cost model's error.

The settings are those of SMAC3's `HyperparameterOptimizationFacade`, with more trees. No tree has more leaves than observations; SMAC's own
bound of 2^20 leaves allocates memory for as many, which takes a tenth of a second per tree.
"""

import numpy as np
from ConfigSpace import ConfigurationSpace
from smac.model.random_forest import RandomForest

from experiments.baselines.physics_forest import PhysicsForest, Values
from oppa.problem.candidates import Candidates
from oppa.problem.problem import Problem

TREES = 50


def smac_physics(problem: Problem, candidates: Candidates, *, seed: int) -> PhysicsForest:
    """Return the designer `smac-physics`."""
    return PhysicsForest(problem, candidates, seed=seed, grow=grow)


def grow(x: Values, y: Values, at: Values, seed: int) -> Values:
    """Return what each tree predicts. The space names one column per feature; trees ignore its bounds."""
    space = ConfigurationSpace({f"x{column}": (0.0, 1.0) for column in range(x.shape[1])})
    forest = RandomForest(
        space,
        n_trees=TREES,
        ratio_features=1.0,
        min_samples_split=2,
        min_samples_leaf=1,
        max_leaf_nodes=max(2, len(y)),
        n_jobs=1,
        seed=seed,
    )
    forest.train(x, y)
    assert forest._rf is not None  # its public prediction gives the mean and the variance over trees alone
    return np.asarray(forest._rf.all_trees_pred(at)).T
