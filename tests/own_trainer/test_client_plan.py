"""The plan of a step: every sample once, whatever the batches are, and the learning rate of oppa's own trainer."""

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given
from oppa_client.plan import Rate, Terms, parts

from oppa.control.own_trainer.contract import RateTerms
from oppa.problem.training import RunOptions
from oppa.training.run.learning_rate import Followed, learning_rate
from tests.own_trainer.folders import terms

SIZES = st.integers(1, 40)


@given(start=st.integers(0, 1000), size=st.integers(0, 100), count=st.integers(1, 9))
def test_parts_follow_each_other_differ_by_one_at_most_and_the_last_are_the_shorter(start, size, count):
    found = parts(range(start, start + size), count)
    lengths = [len(each) for each in found]
    assert list(itertools.chain(*found)) == list(range(start, start + size))
    assert lengths == sorted(lengths, reverse=True) and lengths[0] - lengths[-1] <= 1


@given(batches=st.lists(SIZES, min_size=1, max_size=8), micro_batch=st.integers(1, 7), replicas=st.lists(st.integers(1, 5), min_size=8))
def test_every_sample_is_taken_once_across_changes_of_batch_and_of_replicas(batches, micro_batch, replicas):
    total, progress, taken = sum(batches) - 1, 0, []
    for step, (batch, ranks) in enumerate(zip(batches, replicas, strict=False)):
        plan = terms(batch, 1).at(step, progress, total)
        each = [Terms(1, 0, batch, micro_batch, 1, Rate()).at(step, progress, total).micro_batches(rank, ranks) for rank in range(ranks)]
        assert len({len(parts_of_rank) for parts_of_rank in each}) == 1  # ranks meet in every micro-batch
        assert all(len(one) <= micro_batch for one in itertools.chain(*each))
        taken += itertools.chain(*itertools.chain(*each))
        progress += plan.global_batch
    assert taken == list(range(total))


def test_a_batch_that_divides_has_micro_batches_of_one_size():
    plan = terms(24, 4, replicas=2).at(0, 100, None)
    assert plan.accumulation == 3
    assert [plan.micro_batches(rank, 2) for rank in (0, 1)] == [
        [range(at, at + 4) for at in range(begin, begin + 12, 4)] for begin in (100, 112)
    ]


@given(
    batches=st.lists(st.tuples(SIZES, st.integers(1, 6)), min_size=1, max_size=6),
    damping=st.integers(0, 10),
    scaling=st.sampled_from(["sqrt", "linear", "none"]),
)
def test_the_learning_rate_follows_the_batch_as_in_the_trainer_of_oppa(batches, damping, scaling):
    exponent = {"sqrt": 0.5, "linear": 1.0, "none": 0.0}[scaling]
    first = batches[0][0]
    plan = Terms(1, 0, first, 1, first, Rate(reference_batch=8, exponent=exponent, damping=damping, batch=first))
    followed, options = Followed(batch=first, since=0), RunOptions(scaling=scaling, damping=damping)
    seen = step = 0
    for batch, steps in batches:
        if batch != plan.global_batch:
            followed = Followed(batch=followed.reached(plan.global_batch, seen, damping), since=seen)
        asked = {"number": plan.number + 1, "global_batch": batch, "micro_batch": 1, "accumulation": batch}
        plan = plan.changed(asked, from_step=step, seen=seen)
        for _ in range(steps):
            expected = learning_rate(options, base=1.0, reference_batch=8, batch=range(seen, seen + batch), total=None, followed=followed)
            assert plan.at(step, seen, None).learning_rate_factor == pytest.approx(expected, rel=1e-12)
            seen, step = seen + batch, step + 1


@given(
    batch=SIZES,
    before=SIZES,
    reference=SIZES,
    exponent=st.floats(0, 1),
    damping=st.integers(0, 10),
    since=st.integers(0, 1000),
    further=st.integers(0, 1000),
)
def test_oppa_and_the_client_have_the_same_factor_of_the_learning_rate(batch, before, reference, exponent, damping, since, further):
    values = {"reference_batch": float(reference), "exponent": exponent, "damping": damping, "batch": float(before), "since": since}
    client, ours = Rate(**values), RateTerms.model_validate(values)
    assert client.factor(batch, since + further) == ours.factor(batch, since + further)
    assert client.followed(batch, since + further) == ours.followed(batch, since + further)


@given(size=st.integers(0, 40), micro_batch=st.integers(1, 7), replicas=st.integers(1, 6))
def test_a_step_fills_its_micro_batches_unless_one_of_any_replica_is_empty(size, micro_batch, replicas):
    plan = Terms(1, 0, 40, micro_batch, 1, Rate()).at(0, 0, size)
    assert plan.fills(replicas) == all(all(plan.micro_batches(replica, replicas)) for replica in range(replicas))


@pytest.mark.parametrize(("size", "micro_batch", "replicas", "sizes"), [(8, 8, 1, [4, 4]), (5, 32, 1, [3, 2]), (2, 2, 1, [1, 1])])
def test_a_step_of_one_micro_batch_is_taken_in_two_to_be_measured(size, micro_batch, replicas, sizes):
    plan = Terms.fixed(size, micro_batch, 1).at(3, 24, None)
    parts = plan.in_two(replicas).micro_batches(0, replicas)
    assert [len(part) for part in parts] == sizes and (parts[0].start, parts[-1].stop) == (24, 24 + size)


@pytest.mark.parametrize(("size", "micro_batch", "replicas"), [(8, 4, 1), (8, 8, 2), (1, 8, 1), (0, 8, 1)])
def test_other_steps_stay_as_they_are(size, micro_batch, replicas):
    plan = Terms.fixed(max(1, size), micro_batch, 1).at(3, 24, 24 + size)
    assert plan.in_two(replicas) is plan


def test_terms_are_read_as_they_were_written_and_later_keys_are_left_out():
    plan = terms(16, 2, damping=10)
    assert Terms.of({**plan.to_dict(), "later": 1}) == plan
