"""Every schedule is valid whatever its shape, and as long and as large as its paper has it."""

import pytest

from oppa.errors import InputError
from oppa.pipeline.execution import Times, execute
from oppa.pipeline.memory import Footprint, peak_memory
from oppa.pipeline.schedules import FOLDED, SCHEDULES, build_schedule
from oppa.pipeline.validation import violations

SHAPES = [(p, m, v) for p in (1, 2, 3, 4, 8) for m in (1, 2, 4, 7, 16) for v in (1, 2, 3)]


def equal(stages, *, split=False, transfer_s=0.0):
    """Stages that take 1 s forward and 2 s backward, of which half is the weights' where the order splits it."""
    weights = [1.0] * stages if split else []
    return Times(
        forward_s=[1.0] * stages,
        backward_s=[1.0 if split else 2.0] * stages,
        weight_s=weights,
        transfer_s=[transfer_s] * (stages - 1),
    )


def possible(name, p, m, v):
    try:
        return build_schedule(name, ranks=p, micro_batches=m, chunks=v)
    except InputError:
        return None


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_order_is_valid(name):
    orders = [found for shape in SHAPES if (found := possible(name, *shape))]
    assert len(orders) >= 20
    assert not [violation for found in orders for violation in violations(found)]


@pytest.mark.parametrize("name", SCHEDULES)
def test_one_rank_has_no_bubble(name):
    found = build_schedule(name, ranks=1, micro_batches=5, chunks=2 if name in FOLDED else 1)
    assert execute(found, equal(found.shape.stages, split=found.split)).bubble_rate == pytest.approx(0)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), [(2, 2), (4, 4), (4, 9), (8, 32)])
def test_the_makespan_of_equal_stages_is_known(name, p, m):
    """(m + p - 1) (F + B), Narayanan et al. 2021, section 2.2."""
    assert execute(build_schedule(name, ranks=p, micro_batches=m), equal(p)).makespan_s == pytest.approx((m + p - 1) * 3)


@pytest.mark.parametrize("v", [2, 4])
def test_interleaving_divides_the_bubble_by_the_chunks(v):
    """(p - 1) / v of a micro-batch, Narayanan et al. 2021, section 2.2."""
    p, m = 4, 16
    makespan_s = execute(build_schedule("interleaved", ranks=p, micro_batches=m, chunks=v), equal(p * v)).makespan_s
    assert makespan_s - m * v * 3 == pytest.approx((p - 1) * 3)


def test_zb_h1_has_a_third_of_the_bubble():
    """(p - 1) (F + B - W) where 1F1B has (p - 1) (F + B + W), Qi et al. 2024, table 2; here F = B = W."""
    p, m = 8, 32
    makespan_s = execute(build_schedule("zb-h1", ranks=p, micro_batches=m), equal(p, split=True)).makespan_s
    assert makespan_s - m * 3 == pytest.approx((p - 1) * 1)


def test_zb_v_has_almost_none():
    """If F = B = W, only the first passes down and up, and their like at the end, are left (Qi et al. 2024, section 6)."""
    p = 4
    found = build_schedule("zb-v", ranks=p, micro_batches=16, chunks=2)
    bubble_s = execute(found, equal(2 * p, split=True)).makespan_s - 16 * 2 * 3
    assert bubble_s == pytest.approx(p - 1)


def test_more_micro_batches_never_raise_the_share_of_the_bubble():
    rates = [execute(build_schedule("1f1b", ranks=4, micro_batches=m), equal(4)).bubble_rate for m in (1, 2, 4, 8, 64)]
    assert rates == sorted(rates, reverse=True)


def test_what_is_in_flight_is_known():
    """All micro-batches with GPipe; as many as there are ranks from here on with 1F1B."""
    p, m = 4, 9
    assert peak_memory(build_schedule("gpipe", ranks=p, micro_batches=m), Footprint(held=[1.0] * p)) == [m] * p
    assert peak_memory(build_schedule("1f1b", ranks=p, micro_batches=m), Footprint(held=[1.0] * p)) == [4, 3, 2, 1]
    assert peak_memory(build_schedule("1f1b", ranks=p, micro_batches=2), Footprint(held=[1.0] * p))[0] == 2


def test_interleaving_holds_more():
    """1 + (p - 1) / (p v) of what 1F1B holds on the first rank, Korthikanti et al. 2022, section 4.2.3."""
    p, v = 4, 2
    peak = peak_memory(build_schedule("interleaved", ranks=p, micro_batches=16, chunks=v), Footprint(held=[1 / v] * p * v))[0]
    assert peak == pytest.approx(p * (1 + (p - 1) / (p * v)))


def test_zb_h1_holds_what_1f1b_holds():
    p, m = 8, 24
    late = peak_memory(build_schedule("zb-h1", ranks=p, micro_batches=m), Footprint(held=[1.0] * p, for_weights=[1.0] * p))
    assert max(late) == max(peak_memory(build_schedule("1f1b", ranks=p, micro_batches=m), Footprint(held=[1.0] * p))) == p


@pytest.mark.parametrize(
    ("name", "p", "m", "v", "message"),
    [
        ("1f2b", 2, 2, 1, "is unknown"),
        ("gpipe", 2, 2, 2, "model_chunks = 2"),
        ("zb-v", 2, 2, 3, "model_chunks = 3"),
        ("interleaved", 4, 9, 2, "9 micro-batches"),
    ],
)
def test_what_is_impossible_is_named(name, p, m, v, message):
    with pytest.raises(InputError, match=message) as caught:
        build_schedule(name, ranks=p, micro_batches=m, chunks=v)
    assert caught.value.hint
