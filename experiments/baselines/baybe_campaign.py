"""Wrap BayBE (Fitzner et al. 2025): a campaign over the candidates as a data frame, with its own Gaussian process and acquisition.

A candidate's parameters are numbers in [0, 1], by the encoding that all models share, or categories. The target is throughput as a share
of the best so far; a failure counts as zero. Running trials are pending experiments. Every suggestion comes from a campaign of all trials
so far and a seed of its own.
"""

from collections.abc import Set

import numpy as np
import pandas as pd
from baybe import Campaign, Settings
from baybe.parameters import CategoricalParameter, NumericalDiscreteParameter
from baybe.parameters.base import DiscreteParameter
from baybe.recommenders import BotorchRecommender
from baybe.searchspace import SearchSpace
from baybe.targets import NumericalTarget
from numpy.typing import NDArray

from experiments.baselines.random_first import RandomFirst
from oppa.problem.candidates import Candidates
from oppa.problem.encoding import column_names, encode
from oppa.problem.problem import Problem

RATE = "throughput"


class BaybeCampaign(RandomFirst):
    """Implements the designer `baybe`."""

    stream = "baybe"

    def __init__(self, problem: Problem, candidates: Candidates, *, seed: int) -> None:
        super().__init__(problem, candidates, seed=seed)
        self._frame = frame_of(candidates)

    def _choose(self, rows: NDArray[np.int64], taken: Set[int], rng: np.random.Generator) -> int:
        """Return BayBE's recommendation."""
        running = sorted(taken - {seen.candidate for seen in self._seen})
        with Settings(random_seed=int(rng.integers(2**31))):
            campaign = Campaign(
                _space(self._frame),
                NumericalTarget(RATE),
                BotorchRecommender(),
                allow_recommending_already_measured=False,
                allow_recommending_pending_experiments=False,
            )
            campaign.add_measurements(self._frame.loc[[seen.candidate for seen in self._seen]].assign(**{RATE: self._shares()}))
            return int(campaign.recommend(1, pending_experiments=self._frame.loc[running] if running else None).index[0])


def frame_of(candidates: Candidates) -> pd.DataFrame:
    """Return the candidates: a column of numbers for each parameter that varies, or of texts if its values have no order."""
    columns = dict(zip(column_names(candidates), encode(candidates).T, strict=True))
    kinds = {label.partition("=")[0] for label in columns if "=" in label}
    frame = pd.DataFrame({label: column for label, column in columns.items() if "=" not in label})
    return frame.assign(**{name: candidates.codes[name].astype(str).astype(object) for name in sorted(kinds)})


def _space(frame: pd.DataFrame) -> SearchSpace:
    parameters: list[DiscreteParameter] = [
        CategoricalParameter(name, sorted(set(frame[name])))
        if frame[name].dtype == object
        else NumericalDiscreteParameter(name, sorted(set(frame[name])))
        for name in map(str, frame.columns)
    ]
    return SearchSpace.from_dataframe(frame, parameters)
