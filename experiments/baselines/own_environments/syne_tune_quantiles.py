"""Suggest by Syne Tune's conformal quantile regression (Salinas et al. 2023) at its own settings, sampled over the free candidates alone.

A failed trial counts as slow as the slowest one, since the surrogate has no constraints.
"""

import numpy as np
import pandas as pd
from answering import serve  # type: ignore[import-not-found]  # the script's folder is on the path of the environment's Python
from syne_tune.config_space import uniform
from syne_tune.optimizer.schedulers.searchers.conformal.surrogate.quantile_regression_surrogate import QuantileRegressionSurrogateModel

CONFORMALISED_FROM, VALIDATION_SHARE = 32, 0.1
"""Settings of Syne Tune's own searcher `ConformalQuantileRegression`."""


def suggest(points: list[list[float]], seen: list[tuple[int, float | None]], free: list[int], seed: int) -> int:
    """Return the free candidate with the smallest sampled quantile of minus log throughput."""
    frame = pd.DataFrame(points, columns=[f"x{column}" for column in range(len(points[0]))])
    slowest = min(rate for _, rate in seen if rate is not None)
    np.random.seed(seed)  # the surrogate draws quantiles from the global stream
    model = QuantileRegressionSurrogateModel(
        config_space={name: uniform(0.0, 1.0) for name in frame},
        mode="min",
        random_state=np.random.RandomState(seed),
        min_samples_to_conformalize=CONFORMALISED_FROM,
        valid_fraction=VALIDATION_SHARE,
    )
    costs = np.array([-slowest if rate is None else -rate for _, rate in seen])
    model.fit(df_features=frame.loc[[row for row, _ in seen]].reset_index(drop=True), y=costs, ncandidates=frame.loc[free])
    return free[int(model._sample_best())]


if __name__ == "__main__":
    serve(suggest)
