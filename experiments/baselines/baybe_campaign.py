"""Wraps BayBE (Fitzner et al. 2025): a campaign over the candidates as a data frame, with its own Gaussian process and acquisition.

A candidate's parameters are numbers in [0, 1], by the encoding that all models share, or categories. The target is throughput as a share
of the best so far; a failure counts as zero. Running trials are pending experiments. Every suggestion comes from a campaign of all trials
so far and a seed of its own. So a resumed search goes on as if it had never stopped.
"""

from collections.abc import Sequence, Set

import numpy as np
import pandas as pd
from baybe import Campaign, Settings
from baybe.parameters import CategoricalParameter, NumericalDiscreteParameter
from baybe.parameters.base import DiscreteParameter
from baybe.recommenders import BotorchRecommender
from baybe.searchspace import SearchSpace
from baybe.targets import NumericalTarget

from oppa.problem.candidates import Candidates
from oppa.problem.encoding import column_names, encode
from oppa.problem.problem import Problem
from oppa.random_streams import stream
from oppa.tuning.designer import Observation, at_random
from oppa.tuning.designers.random_search import RandomSearch

RANDOM_TRIALS = 5
RATE = "throughput"


class BaybeCampaign:
    """Implements the designer `baybe`."""

    def __init__(self, problem: Problem, candidates: Candidates, *, seed: int) -> None:
        self._frame = frame_of(candidates)
        self._chance = RandomSearch(problem, candidates, seed=seed)
        self._seed = seed
        self._seen: list[Observation] = []

    def update(self, observations: Sequence[Observation]) -> None:
        """Store how trials ended."""
        self._seen += observations

    def suggest(self, taken: Set[int]) -> int | None:
        """Return a random candidate at first, then BayBE's recommendation; None if none is free."""
        if len(taken) == len(self._frame) or at_random(self._seen, first=RANDOM_TRIALS, failures=len(self._seen) + 1):
            return self._chance.suggest(taken)
        running = sorted(taken - {seen.candidate for seen in self._seen})
        with Settings(random_seed=int(stream(self._seed, f"baybe/{len(taken)}").integers(2**31))):
            campaign = Campaign(
                _space(self._frame),
                NumericalTarget(RATE),
                BotorchRecommender(),
                allow_recommending_already_measured=False,
                allow_recommending_pending_experiments=False,
            )
            campaign.add_measurements(self._measurements())
            return int(campaign.recommend(1, pending_experiments=self._frame.loc[running] if running else None).index[0])

    def predict(self, candidate: int) -> None:
        """Return None, as a share of the best so far is no throughput."""

    def _measurements(self) -> pd.DataFrame:
        rates = np.exp([-np.inf if seen.log_steps_per_s is None else seen.log_steps_per_s for seen in self._seen])
        return self._frame.loc[[seen.candidate for seen in self._seen]].assign(**{RATE: rates / rates.max()})


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
