"""Fit hyper-parameters by maximum a posteriori: L-BFGS maximises the marginal likelihood with all priors."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from threadpoolctl import ThreadpoolController
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from oppa.tuning.surrogate.log_posterior import LogPosterior

MAX_EVALUATIONS = 200
TOLERANCE = 1e-5
"""Relative change of the log posterior at which a fit ends. The same data begin and end a fit at the same points."""
_LIBRARIES = ThreadpoolController()


def fit(model: Any) -> float:
    """Move the model's hyper-parameters from their present values to the nearest optimum, and return their log posterior."""
    posterior = LogPosterior.of(model)
    best = parameters_to_vector(posterior.parameters).detach()
    least = math.inf

    def objective(vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        nonlocal least, best
        raw = torch.from_numpy(vector)
        try:
            loss, gradient = posterior.loss(raw)
        except ArithmeticError:
            return 1e10, np.zeros_like(vector)
        if loss < least:
            least, best = loss, raw.clone()
        return loss, gradient.numpy()

    options = {"maxfun": MAX_EVALUATIONS, "ftol": TOLERANCE, "gtol": 1e-4}
    with _LIBRARIES.limit(limits=1):  # a second thread makes L-BFGS's small products several times slower
        minimize(objective, best.numpy().copy(), jac=True, method="L-BFGS-B", options=options)
    vector_to_parameters(best, posterior.parameters)  # the line search may end elsewhere, even at NaN if the likelihood is unbounded
    return -least
