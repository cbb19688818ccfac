"""Table 6 and Figure 25: what variations of the prior and of q_min did to a search."""

import pytest

from oppa.bench.runs import SearchRun
from oppa.bench.sensitivity import prior_section, q_min_figures, q_min_section, variation_section
from oppa.bench.variations import VARIATIONS, variations_named
from oppa.errors import InputError


def run_of(variation: str, seed: int, best: tuple[float, ...], outcomes: str) -> SearchRun:
    nothing = (None,) * len(best)
    return SearchRun(
        task="a",
        designer="oppa",
        seed=seed,
        variation=variation,
        best_at=best,
        seconds=tuple(250.0 * (k + 1) for k in range(len(best))),
        steps=(7,) * len(best),
        outcomes=outcomes,
        measured=nothing,
        predicted=nothing,
        log_stddev=nothing,
        memory=nothing,
        predicted_memory=nothing,
        winner=None,
        thinking_s=0.0,
    )


RUNS = [
    run_of("", 0, (0.5, 0.9, 1.0), "ctt"),
    run_of("", 1, (0.7, 0.9, 1.0), "ctt"),
    run_of("", 2, (0.0, 0.0, 0.0), "fff"),
    run_of("prior-50", 0, (0.1, 0.2, 0.6), "ccc"),
    run_of("prior-50", 1, (0.3, 0.4, 0.8), "ccc"),
    run_of("q-min-10", 0, (0.5, 0.6, 0.7), "cct"),
    run_of("q-min-10", 1, (0.5, 0.6, 0.7), "ccc"),
]


def test_table_6_takes_medians_of_the_seeds_that_all_priors_have() -> None:
    section = prior_section(RUNS)
    assert [row[2:] for row in section.rows] == [("0.600", "0.900", "1.000"), ("0.200", "0.300", "0.700")]
    assert "2 seeds" in section.text


def test_figure_25_counts_the_trials_that_ended_early() -> None:
    section = q_min_section(RUNS)
    assert [row[:3] for row in section.rows] == [("of the job", "67%", "21"), ("10", "17%", "21")]
    assert set(q_min_figures(RUNS)) == {"q-min.svg"}


def test_one_variation_alone_shows_nothing() -> None:
    alone = [run for run in RUNS if run.variation == ""]
    assert (variation_section(alone, 3), prior_section(alone), q_min_section(alone)) == (None, None, None)
    assert q_min_figures(alone) == {}


def test_variations_are_chosen_by_name() -> None:
    assert variations_named("") == ("",)
    assert variations_named("prior-25, q-min-2") == ("", "prior-25", "q-min-2")
    assert variations_named("all") == tuple(VARIATIONS)
    with pytest.raises(InputError, match="`--variations prior-26` is unknown"):
        variations_named("prior-26")
