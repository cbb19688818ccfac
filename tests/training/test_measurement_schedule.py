"""A step without a measurement neither biases the estimate nor changes its time constant; the interval follows cost and need."""

import dataclasses
import itertools
import math
import time
import weakref

import numpy as np
import pytest
import torch
from oppa_client.plan import Terms
from torch import nn

from oppa.errors import InputError
from oppa.training import GradientStatistics
from oppa.training.parallel.gradient_layout import layout_of
from oppa.training.statistics.measurement_schedule import COMPARED, LONGEST, LONGEST_IN_TWO, RECENT, MeasurementSchedule
from oppa.training.statistics.noise_scale import NoiseScale, NoiseScaleEstimate, Smoothing
from oppa.training.statistics.step_clock import StepClock, StepSeconds
from tests.training.rank_pool import RankPool

RELIABLE = NoiseScale(samples=1000, tokens=1e6)


def hear(found: MeasurementSchedule, inside: float, longer: float | None = None, *, times: int = RECENT, micro_batches: int = 9) -> None:
    """Tell a schedule of measured steps of one second: their time inside measuring, and by how much they are longer than others."""
    for _ in range(times):
        other = 0.0 if longer is None else 1 / (1 + longer)
        found.took(StepSeconds(inside, 1.0, other), tokens=100, micro_batches=micro_batches)


def schedule(share: float, *, micro_batches: int = 9, largest_share: float = 0.01) -> MeasurementSchedule:
    """Return a schedule that has heard of measured steps which take this share of their time, and are no longer than others."""
    found = MeasurementSchedule(largest_share)
    hear(found, share, 0.0, micro_batches=micro_batches)
    return found


@pytest.mark.parametrize(("share", "interval"), [(0.002, 1), (0.01, 1), (0.015, 2), (0.035, 4), (0.5, LONGEST)])
def test_the_interval_is_the_smallest_that_the_share_of_the_time_allows(share: float, interval: int) -> None:
    assert schedule(share).interval(RELIABLE) == interval
    assert schedule(share, largest_share=share).interval(RELIABLE) == 1


def test_each_step_is_measured_until_the_cost_is_known_and_the_estimate_reliable() -> None:
    assert MeasurementSchedule(0.01).interval(RELIABLE) == 1
    assert schedule(0.5).interval(NoiseScale()) == 1
    assert schedule(0.5, micro_batches=1).interval(NoiseScale()) == LONGEST, "one micro-batch gives no estimate, however often"


def test_an_average_holds_enough_micro_batches() -> None:
    # Averages that keep 0.95 span 39 steps: of two micro-batches each, every one is needed; of four, every third one.
    assert [schedule(0.5, micro_batches=count).interval(RELIABLE) for count in (2, 4, 100)] == [1, 3, LONGEST]


def in_two(cost: float, *, largest_share: float = 0.01) -> MeasurementSchedule:
    """Return a schedule that has heard of steps in two, which are longer than others by this share."""
    found = MeasurementSchedule(largest_share)
    for _ in range(COMPARED):
        found.took(StepSeconds(0.001, 1.0, 1 / (1 + cost)), tokens=100, micro_batches=2, in_two=True)
    return found


@pytest.mark.parametrize(
    ("cost", "steps", "interval"),
    [
        *((0.001, 10_000, 2), (0.045, 10_000, 5), (0.9, 10_000, LONGEST_IN_TWO)),  # what is affordable, and at least every second one
        *(
            (0.119, 50, 2),
            (0.119, 200, 3),
            (0.119, 600, 9),
            (0.119, 2000, 12),
        ),  # the average would lag: 13 estimates are a fifth of all steps
        *((0.8, 50, 8), (0.4, 50, 4)),  # but they take at most ten times what is affordable
    ],
)
def test_the_interval_of_steps_in_two_grows_with_the_training_and_follows_their_cost(cost: float, steps: int, interval: int) -> None:
    assert in_two(cost - 1e-6).interval(dataclasses.replace(RELIABLE, tokens=100.0 * steps)) == interval
    assert in_two(cost).interval(NoiseScale()) == 1, "until the estimate is reliable"


def test_costs_of_steps_in_two_are_forgotten_with_them() -> None:
    found = in_two(0.9)
    hear(found, 0.002, 0.0)
    assert found.interval(RELIABLE) == 1
    found.took(StepSeconds(0.001, 1.0, 0.5), tokens=100, micro_batches=2, in_two=True)
    assert found.interval(RELIABLE) == 2, "the new costs are not compared yet"


def test_one_slow_step_does_not_count() -> None:
    found = schedule(0.015)
    hear(found, 0.9, 0.9, times=1)
    assert found.interval(RELIABLE) == 2


def test_the_larger_of_both_costs_counts_and_until_both_are_known_some_steps_are_not_measured() -> None:
    found = MeasurementSchedule(0.01)
    hear(found, 0.002)
    assert found.interval(RELIABLE) == 2, "steps that are not measured are needed for the comparison"
    hear(found, 0.002, 0.055, times=RECENT - 1)
    assert found.interval(RELIABLE) == 2
    hear(found, 0.002, 0.055, times=1)
    assert found.interval(RELIABLE) == 6, "measuring makes the step longer than its own time"
    hear(found, 0.002, -0.01, times=COMPARED)
    assert found.interval(RELIABLE) == 1
    hear(found, 0.025, -0.01, times=COMPARED)
    assert found.interval(RELIABLE) == 3


def due(found: MeasurementSchedule, plans: Terms, every: int | None, steps: int = 12) -> list[int]:
    return [step for step in range(steps) if found.begin(plans.at(step, 0, None, every), 1, RELIABLE)]


def test_a_stated_interval_holds_and_a_step_with_an_empty_micro_batch_is_not_measured() -> None:
    plans, empty = Terms.fixed(8, 2, 4), Terms.fixed(1, 2, 1).at(0, 0, None)
    assert due(schedule(0.5), plans, 1) == list(range(12))
    assert due(schedule(0.002), plans, 5) == [0, 5, 10]
    assert due(schedule(0.002), plans, 0) == []
    assert due(schedule(0.035), plans, None) == [0, 4, 8]
    late = schedule(0.035)
    assert not late.begin(empty, 2, RELIABLE) and late.begin(plans.at(1, 0, None), 1, RELIABLE)


def test_a_share_that_is_not_positive_is_refused() -> None:
    with pytest.raises(InputError, match="largest_share"):
        GradientStatistics(nn.Linear(1, 1), largest_share=0.0)


def smoothed(estimates: np.ndarray, every: int, keep: float = 0.9) -> NoiseScale:
    """Return the noise scale after steps of which every n-th is measured."""
    known = NoiseScale(smoothing=Smoothing(warming=keep))
    for step, noise in enumerate(estimates):
        if step % every:
            known = known.passing(1.0)
        else:
            known = known.after(NoiseScaleEstimate(signal=1.0, noise=noise), tokens=1.0, micro_batches=9)
    return known


@pytest.mark.parametrize("every", [1, 2, 4, 8])
def test_averages_forget_at_the_same_rate_however_many_steps_are_measured(every: int) -> None:
    before = smoothed(np.array([1.0] * 160 + [0.0] * 16), every)
    assert before.noise == pytest.approx(0.9**16, rel=1e-6)  # the weight of all before the last sixteen steps
    assert before.tokens == 176 and smoothed(np.full(40, 7.0), every).noise == pytest.approx(7.0)


@pytest.mark.parametrize("every", [2, 4, 8])
def test_the_variance_grows_with_the_interval_and_the_mean_does_not_change(every: int) -> None:
    keep = 0.95
    # An average is linear in the estimates: its weights are what it is of each alone.
    all_steps, some = (np.array([smoothed(each, interval, keep).noise for each in np.eye(200)]) for interval in (1, every))
    assert all_steps.sum() == pytest.approx(1) and some.sum() == pytest.approx(1)
    wanted = (1 - keep**every) / (1 + keep**every) * (1 + keep) / (1 - keep)
    assert (some**2).sum() / (all_steps**2).sum() == pytest.approx(wanted, rel=1e-3) and wanted == pytest.approx(every, rel=0.02)


PLANTED, SIZE = 50.0, 64


def backward(model: nn.Module, generator: torch.Generator, micro_batches: int = 8) -> None:
    """Add gradients of noise scale PLANTED, in tokens, over micro-batches of one token."""
    for _ in range(micro_batches):
        noise = torch.randn(SIZE, generator=generator) * (PLANTED / SIZE) ** 0.5
        (model(torch.full((SIZE,), SIZE**-0.5) + noise).sum() / micro_batches).backward()


@pytest.mark.slow
def test_the_estimate_under_a_schedule_agrees_with_that_of_every_step() -> None:
    model, generator = nn.Linear(SIZE, 1, bias=False), torch.Generator().manual_seed(0)
    smoothing = Smoothing(warming=0.99)
    each, some = (GradientStatistics(model, noise_scale=NoiseScale(smoothing=smoothing)) for _ in range(2))
    plans = Terms.fixed(8, 1, 8)
    for step in range(800):
        each.begin(plans.at(step, 0, None, 1), 1)
        some.begin(plans.at(step, 0, None, 4), 1)
        backward(model, generator)
        each.step([1] * 8, wait=False)
        some.step([1] * 8, wait=False)
        if step % 4 == 0:
            assert each.norms == some.norms
        model.zero_grad()
    assert each.noise_scale.tokens == 6400 and some.noise_scale.tokens == pytest.approx(6400, abs=8 * 4)
    # tr(Sigma) of one step is found to 2 / (SIZE * 7) in its square, and averages hold 199 steps, or 49 measured ones.
    errors = [4 * (2 / SIZE / 7 / steps) ** 0.5 for steps in (199, 49)]
    assert [known.noise_scale.noise for known in (each, some)] == [pytest.approx(PLANTED, rel=error) for error in errors]
    assert some.noise_scale.signal == pytest.approx(each.noise_scale.signal, abs=1.5)
    assert some.report()["noise_scale"] is not None and some.report()["variance_ratio"] is None, "the last step was not measured"


def test_a_step_of_one_micro_batch_is_measured_in_two() -> None:
    model, generator, rows = nn.Linear(SIZE, 1, bias=False), torch.Generator().manual_seed(0), 8
    statistics, plans, sizes = GradientStatistics(model), Terms.fixed(8, 8, 1), []
    for step in range(800):
        micro_batches = statistics.begin(plans.at(step, 0, None, 4), 1).micro_batches(0, 1)
        sizes.append([len(each) for each in micro_batches])
        noise = torch.randn(rows, SIZE, generator=generator) * (PLANTED / SIZE) ** 0.5
        outputs = model(torch.full((SIZE,), SIZE**-0.5) + noise).flatten()
        for each in micro_batches:
            (outputs[list(each)].sum() / rows).backward(retain_graph=True)
        statistics.step(sizes[-1], wait=False)
        model.zero_grad()
    assert sizes[:5] == [[4, 4], [8], [8], [8], [4, 4]] and statistics.report()["health"] == "healthy"
    known = statistics.noise_scale
    assert (known.samples, known.tokens) == (200, pytest.approx(6400, abs=8 * 4))
    # Averages hold 13 estimates, each with the error of one pair of SIZE directions.
    assert known.noise == pytest.approx(PLANTED, rel=4 * (2 / SIZE / 13) ** 0.5)
    assert known.signal == pytest.approx(1.0, abs=4 * PLANTED / 8 * (2 / SIZE / 13) ** 0.5)


def test_workers_are_not_measured_in_two() -> None:
    statistics = GradientStatistics(nn.Linear(SIZE, 1, bias=False), over="workers")
    plan = Terms.fixed(8, 8, 1).at(0, 0, None, 1)
    assert statistics.begin(plan, 1) is plan


@pytest.mark.parametrize("steps", [0, 1, 7])
def test_steps_in_one_pass_count_as_one_by_one_and_may_keep_a_share_of_the_weight(steps: int) -> None:
    known = smoothed(np.ones(3), 1)
    in_turn = known
    for _ in range(steps):
        in_turn = in_turn.passing(5.0)
    together = known.passing(5.0, steps)
    assert (together.tokens, together.samples) == (in_turn.tokens, in_turn.samples)
    assert together.weight == pytest.approx(in_turn.weight) and together.noise == pytest.approx(in_turn.noise)
    assert known.passing(5.0, steps, least=0.95).weight == pytest.approx(known.weight * max(0.95, 0.9**steps))


def test_a_step_that_is_not_measured_has_no_hooks_and_the_next_ones_are_measured_as_before() -> None:
    model, generator = nn.Linear(SIZE, 1, bias=False), torch.Generator().manual_seed(0)
    statistics, plans = GradientStatistics(model), Terms.fixed(8, 1, 8)
    seen = []
    for step in range(4):
        statistics.begin(plans.at(step, 0, None, 2), 1)
        seen.append(len(model.weight._backward_hooks or {}))
        backward(model, generator)
        statistics.step([1] * 8)
        model.zero_grad()
    assert seen == [1, 0, 1, 0] and statistics.noise_scale.samples == 14


def test_the_cost_is_measured_on_the_way() -> None:
    model, generator = nn.Linear(SIZE, 1, bias=False), torch.Generator().manual_seed(0)
    # Everything is affordable, or nothing is: with 9 micro-batches in each average's step, the longest interval follows.
    for largest_share, interval in ((1e9, 1), (1e-9, LONGEST)):
        statistics, plans = GradientStatistics(model, largest_share=largest_share), Terms.fixed(16, 1, 16)
        measured = []
        for step in range(40):
            statistics.begin(plans.at(step, 0, None), 1)
            measured += [] if statistics.paused else [step]
            backward(model, generator, 16)
            statistics.step([1] * 16, wait=False)
            model.zero_grad()
        gaps = [after - before for before, after in itertools.pairwise(measured)]
        assert gaps[0] == 1 and gaps[-1] == interval and math.isfinite(statistics.noise_scale.noise)


@pytest.mark.parametrize("every", [0, 400])
def test_steps_that_are_not_measured_keep_few_events_of_the_device(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = weakref.WeakSet["Event"]()

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            kept.add(self)

        def record(self) -> None: ...

    monkeypatch.setattr(torch.cuda, "Event", Event)
    layout = dataclasses.replace(layout_of(nn.Linear(1, 1)), device=torch.device("cuda"))
    statistics, plans = GradientStatistics(layout), Terms.fixed(8, 1, 8)
    for step in range(1, 400):
        statistics.begin(plans.at(step, 0, None, every), 1)
        statistics.step([1] * 8)
    assert statistics.paused and len(kept) < 200


def test_measured_steps_are_timed_apart_from_the_others_that_are_like_them(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, now = StepClock(torch.device("cpu")), [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def step(seconds: float, *, measured: bool, micro_batches: int = 4) -> None:
        clock.begin()
        with clock.measuring():
            now[0] += 0.25 * measured
        now[0] += seconds
        clock.end(measured=measured)  # before its work is done, this ends nothing
        clock.took(micro_batches)
        clock.end(measured=measured)
        now[0] += 100.0  # a pause between steps

    step(1.0, measured=True)
    assert clock.take() == StepSeconds(inside=0.25, measured=1.25, other=0.0)
    step(2.0, measured=False, micro_batches=8)
    step(3.0, measured=False)
    step(5.0, measured=False)
    step(1.0, measured=True)
    assert clock.take() == StepSeconds(inside=0.25, measured=1.25, other=4.0)
    clock.took(4)
    clock.end(measured=False)
    assert clock.take() == StepSeconds(), "a step that did not begin has no time"


def test_a_checkpoint_from_before_goes_on() -> None:
    known = smoothed(np.full(10, 3.0), 4)
    assert NoiseScale.from_dict(dataclasses.asdict(known)) == known


@pytest.mark.slow
@pytest.mark.parametrize("program", ["ddp, scheduled", "fsdp, scheduled"])
def test_ranks_with_costs_of_their_own_measure_the_same_steps(program: str, pool: RankPool) -> None:
    steps, noise = pool.agreed(program, 2)
    assert steps[:2] == [0, 1] and len(steps) < 20 and math.isfinite(noise)
