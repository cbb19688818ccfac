"""A learning curve that is known."""

import numpy as np

from oppa.simulator.learning_curve import LearningCurve

TRUTH = LearningCurve(
    progress=tuple(np.linspace(100, 20_000, 50)),
    loss=tuple(np.linspace(2.3, 0.2, 50)),
    accuracy=tuple(np.linspace(0.1, 0.97, 50)),
    noise_scale=80.0,
    scaling="sqrt",
)
