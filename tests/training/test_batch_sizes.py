"""The learning rate and the micro-batch follow the global batch."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.problem.training import RunOptions
from oppa.training.parallel.supported_layouts import require_schedulable
from oppa.training.run.batch_sizes import rebatched
from oppa.training.run.learning_rate import Followed, learning_rate, scale

PRESENT = Configuration(dp=2, pp=2, global_batch=16, micro_batch=4)


def test_the_micro_batch_is_the_largest_that_fits_up_to_the_present_one() -> None:
    assert [rebatched(PRESENT, 8, global_batch=batch).micro_batch for batch in (8, 12, 16, 20, 64)] == [2, 3, 4, 2, 4]
    assert rebatched(PRESENT, 8, global_batch=64, micro_batch=8).micro_batch == 8


@given(st.integers(1, 4), st.sampled_from([1, 2, 4]), st.integers(1, 64), st.integers(1, 8))
def test_what_is_found_runs_and_only_batch_sizes_differ(dp: int, pp: int, global_batch: int, micro_batch: int) -> None:
    present = Configuration(dp=dp, pp=pp, global_batch=dp * pp * micro_batch, micro_batch=micro_batch)
    try:
        found = rebatched(present, 8, global_batch=global_batch)
    except InputError as error:
        runs = [size for size in range(1, micro_batch + 1) if global_batch % (dp * size) == 0 and global_batch // dp // size >= pp]
        assert not runs or pp == 1, error.hint
        return
    require_schedulable(found, 8)
    assert found.global_batch == global_batch and found.micro_batch <= micro_batch and (found.dp, found.pp) == (dp, pp)


def test_a_batch_that_cannot_run_names_the_nearest_that_can() -> None:
    with pytest.raises(InputError, match="cannot run `global_batch = 17`") as caught:
        rebatched(PRESENT, 8, global_batch=17)
    assert caught.value.hint in ("use 16", "use 18")
    with pytest.raises(InputError, match="in micro-batches of 3") as caught:
        rebatched(PRESENT, 8, global_batch=16, micro_batch=3)
    assert caught.value.hint in ("use 12", "use 18")


RECIPE = RunOptions(warmup_samples=100, decay="cosine", final_share=0.1)


def rate(batch: range, run_options: RunOptions = RECIPE) -> float:
    return learning_rate(run_options, base=1.0, reference_batch=8, batch=batch, total=1100)


@given(st.integers(1, 512), st.integers(1, 512), st.integers(0, 2000))
def test_a_change_of_batch_multiplies_it_by_the_root_of_their_ratio(before: int, after: int, seen: int) -> None:
    run_options = RunOptions(decay="linear")  # without a warm-up, which ends with the batch
    one, other = (rate(range(seen, seen + batch), run_options) for batch in (before, after))
    assert other == pytest.approx(one * math.sqrt(after / before))


def test_it_follows_a_larger_batch_little_by_little_and_a_smaller_one_at_once() -> None:
    run_options, grown = RunOptions(damping=4), Followed(batch=8, since=100)
    steps = [range(start, start + 32) for start in range(100, 100 + 5 * 32, 32)]
    followed = [
        learning_rate(run_options, base=1.0, reference_batch=8, batch=batch, total=None, followed=grown) ** 2 * 8 for batch in steps
    ]
    assert followed == pytest.approx([14, 20, 26, 32, 32])
    assert grown.reached(4, 104, 4) == 4 and grown.reached(32, 132, 0) == 32


def test_it_rises_falls_and_ends_by_samples_whatever_the_steps() -> None:
    assert rate(range(92, 100)) == pytest.approx(1.0) and rate(range(42, 50)) == pytest.approx(0.5)
    assert rate(range(600, 608)) == pytest.approx(0.55) and rate(range(1100, 1108)) == pytest.approx(0.1) == rate(range(9000, 9008))
    assert rate(range(600, 608), RunOptions(warmup_samples=100, decay="linear", final_share=0)) == pytest.approx(0.5)
    assert rate(range(5000, 5008), RunOptions()) == 1.0


@pytest.mark.parametrize(("decay_samples", "rates"), [(None, [1.0, 1.0, 0.55, 0.1]), (400, [1.0, 0.6625, 0.2125, 0.1])])
def test_it_is_stable_until_the_last_samples_of_a_warm_up_stable_decay(decay_samples: int | None, rates: list[float]) -> None:
    run_options = RunOptions(warmup_samples=100, decay="wsd", decay_samples=decay_samples, final_share=0.1)
    assert rate(range(42, 50), run_options) == pytest.approx(0.5)
    starts = (700, 850, 1050, 1100) if decay_samples else (700, 990, 1045, 1100)
    assert [rate(range(start, start + 8), run_options) for start in starts] == pytest.approx(rates)


def test_scaling_rules() -> None:
    assert [scale(rule, 32, 8) for rule in ("sqrt", "linear", "none")] == [2.0, 4.0, 1.0]
    with pytest.raises(InputError, match="`scaling = cubic` is unknown"):
        scale("cubic", 1, 1)
