"""Provide pipelines to search."""

import pytest

from oppa.pipeline.costs import Costs


@pytest.fixture
def costs():
    """Ranks that are all alike, with the times of the Zero Bubble paper's 1.5B model, in seconds (Qi et al. 2024, table 9)."""

    def of(ranks: int, **changed: float) -> Costs:
        return Costs(
            forward_s=[18.522e-3] * ranks, backward_s=[18.086e-3] * ranks, weight_s=[9.337e-3] * ranks, transfer_s=0.601e-3, **changed
        )

    return of
