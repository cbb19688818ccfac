"""The norm test is the paper's, gradient by gradient; the batch that it requests can be run, and a loop of one's own receives it."""

import math
import tomllib
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from oppa.errors import InputError
from oppa.problem.job import load_job
from oppa.training import NormTest
from oppa.training.statistics.noise_scale import Norms
from oppa.training.statistics.norm_test import ETA, Form, Sizes, groups_of, required_batch, sized, sized_as_written, variance_ratio
from tests.training.families import ROOT
from tests.training.per_sample import per_sample_norms

SAMPLES, GROUPS = 12, 4


def small_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    model[0].bias.requires_grad_(False)
    return model


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SAMPLES, 5, dtype=torch.float64, generator=generator), torch.randint(3, (SAMPLES,), generator=generator)


def gradient(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(model(inputs), targets)
    return torch.cat([each.flatten() for each in torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])])


def of_samples(model: nn.Module) -> list[Tensor]:
    """One backward pass for each."""
    return [gradient(model, one.unsqueeze(0), target.unsqueeze(0)) for one, target in zip(*data(), strict=True)]


def norms_of(groups: Sequence[Tensor], size: int) -> Norms:
    big = float(torch.stack(list(groups)).mean(0).square().sum())
    small = sum(float(each.square().sum()) for each in groups) / len(groups)
    return Norms(small=small, big=big, small_tokens=size, big_tokens=size * len(groups))


@pytest.mark.parametrize("chunk", [None, 5])
def test_gradients_of_single_samples_are_those_of_single_passes(chunk: int | None) -> None:
    model = small_model()
    found = per_sample_norms(model, nn.functional.cross_entropy, *data(), chunk=chunk)
    known = norms_of(of_samples(model), 1)
    assert (found.small, found.big) == pytest.approx((known.small, known.big), rel=1e-12)
    assert (found.small_tokens, found.big_tokens) == (1, SAMPLES)


def test_a_variance_takes_two_samples() -> None:
    inputs, targets = data()
    with pytest.raises(InputError, match="1 inputs"):
        per_sample_norms(small_model(), nn.functional.cross_entropy, inputs[:1], targets[:1])


def test_of_single_samples_it_is_equation_3() -> None:
    model = small_model()
    each, mean = of_samples(model), gradient(model, *data())
    variance = sum(float((one - mean).square().sum()) for one in each) / (SAMPLES - 1)
    ratio = variance_ratio([per_sample_norms(model, nn.functional.cross_entropy, *data())])
    assert ratio == pytest.approx(variance / float(mean.square().sum()), rel=1e-10)


def test_of_workers_as_written_it_is_equation_5() -> None:
    model, (inputs, targets) = small_model(), data()
    groups = [gradient(model, *both) for both in zip(inputs.chunk(GROUPS), targets.chunk(GROUPS), strict=True)]
    mean = gradient(model, inputs, targets)
    left_side = sum(float((each - mean).square().sum()) for each in groups) / GROUPS
    ratio = variance_ratio([norms_of(groups, SAMPLES // GROUPS)], "paper")
    assert ratio == pytest.approx(left_side / float(mean.square().sum()), rel=1e-10)


@given(signal=st.floats(0.01, 100), noise=st.floats(0.01, 1e4), size=st.integers(1, 64), count=st.integers(2, 64))
def test_as_written_the_batch_counts_twice_and_is_bounded(signal: float, noise: float, size: int, count: int) -> None:
    """The two forms differ by b / (J - 1) in expectation."""
    batch = size * count
    norms = [Norms(small=signal + noise / size, big=signal + noise / batch, small_tokens=size, big_tokens=batch)]
    unbiased, as_written = variance_ratio(norms), variance_ratio(norms, "paper")
    assert unbiased is not None and as_written is not None
    assert unbiased == pytest.approx(noise / norms[0].big, rel=1e-6)
    assert as_written == pytest.approx(unbiased * (count - 1) / batch, rel=1e-6)
    assert as_written <= (count - 1) * (1 + 1e-9)


def test_by_default_the_batch_that_just_passes_is_the_critical_batch_size() -> None:
    noise_scale = 50.0
    passing = 2 * noise_scale  # as COPUS has it
    ratio = noise_scale / (1 + noise_scale / passing)
    assert required_batch(ratio, ETA["unbiased"]) == pytest.approx(passing, rel=0.02)


@pytest.mark.parametrize("sample_tokens", [1, 8])
def test_a_sample_may_be_many_tokens(sample_tokens: int) -> None:
    norms = [Norms(small=3.0, big=1.0, small_tokens=2 * sample_tokens, big_tokens=8 * sample_tokens)]
    assert variance_ratio(norms, sample_tokens=sample_tokens) == pytest.approx((3 - 1) / (1 / 2 - 1 / 8))


@pytest.mark.parametrize(
    "norms",
    [
        [Norms(small=math.inf, big=1.0, small_tokens=1, big_tokens=8), Norms(small=1.0, big=1.0, small_tokens=1, big_tokens=8)],
        [Norms(small=1.0, big=0.5, small_tokens=8 * (1 - 1e-12), big_tokens=8)],
        [],
        [Norms(small=1.0, big=1.0, small_tokens=8, big_tokens=8)],
        [Norms(small=1.0, big=0.0, small_tokens=1, big_tokens=8)],
        [Norms(small=math.nan, big=math.nan, small_tokens=1, big_tokens=8)],
        [Norms(small=math.inf, big=1.0, small_tokens=1, big_tokens=8)],
    ],
    ids=["one of two infinite", "one group by rounding", "nothing", "one group", "no gradient", "not a number", "infinite"],
)
@pytest.mark.parametrize("form", ETA)
def test_a_step_that_does_not_tell(norms: list[Norms], form: Form) -> None:
    assert variance_ratio(norms, form) is None


@pytest.mark.parametrize("eta", [0.0, -1.0, math.nan])
def test_an_eta_that_asks_for_nothing(eta: float) -> None:
    with pytest.raises(InputError, match="is not positive"):
        required_batch(1.0, eta)


def test_eq_5_as_written_compares_workers_where_there_are_several() -> None:
    assert groups_of("paper", 2) == "workers"
    assert groups_of("paper", 1) == groups_of("unbiased", 8) == "micro-batches"


@given(wanted=st.integers(1, 10_000), workers=st.integers(1, 16), micro_batch=st.integers(1, 16), spare=st.integers(0, 5000))
def test_what_is_asked_for_is_rounded_to_what_can_be_run(wanted: int, workers: int, micro_batch: int, spare: int) -> None:
    maximum = workers + spare
    sizes = sized(wanted, workers=workers, micro_batch=micro_batch, maximum=maximum)
    assert sizes.micro_batch <= micro_batch and sizes.global_batch <= maximum
    if sizes.global_batch < wanted:
        assert sizes.global_batch + workers * min(micro_batch, maximum // workers) > maximum, "no whole micro-batch more fits"
    else:
        assert sizes.global_batch - wanted < workers * sizes.accumulation, "rounded up, not further"


@pytest.mark.parametrize(
    ("workers", "micro_batch", "maximum", "largest"),
    [(1, 2, 1001, 1000), (3, 2, 1000, 996), (4, 8, 1000, 992), (4, 8, 31, 28), (5, 8, 7, 5), (2, 32, 101, 100), (1, 32, 63, 62)],
)
def test_little_of_the_maximum_is_lost(workers: int, micro_batch: int, maximum: int, largest: int) -> None:
    assert sized(10**6, workers=workers, micro_batch=micro_batch, maximum=maximum).global_batch == largest


def test_a_worker_alone_can_be_made_to_have_two_micro_batches() -> None:
    assert sized(8, workers=1, micro_batch=8, maximum=64, least=2) == Sizes(workers=1, accumulation=2, micro_batch=4)
    assert sized(1, workers=1, micro_batch=8, maximum=2, least=2).global_batch == 2
    with pytest.raises(InputError, match="2 micro-batches each"):
        sized(1, workers=1, micro_batch=8, maximum=1, least=2)


def test_as_written_micro_batches_grow_without_bound() -> None:
    """Algorithm 1 with J = 4 workers and M = 16 micro-batches, as in the paper's table 5."""
    sizes = sized_as_written(3000, workers=4, accumulation=16)
    assert (sizes.micro_batch, sizes.global_batch) == (47, 3008)


def steps(test: NormTest, model: nn.Module, count: int) -> list[int]:
    """Global batches of the steps that follow; one micro-batch for each sample."""
    inputs, targets = data()
    found = []
    for _ in range(count):
        model.zero_grad()
        for one, target in zip(inputs, targets, strict=True):
            (nn.functional.cross_entropy(model(one.unsqueeze(0)), target.unsqueeze(0)) / SAMPLES).backward()
        found.append(test.step([1] * SAMPLES).global_batch)
    return found


def test_a_loop_of_ones_own_gets_the_batch_that_eq_3_asks_for() -> None:
    model = small_model()
    ratio = variance_ratio([norms_of(of_samples(model), 1)])
    assert ratio is not None
    test = NormTest(model, global_batch=1, micro_batch=2, maximum=1000, eta=0.5, growth=1000)
    wanted = sized(math.ceil(ratio / 0.25), workers=1, micro_batch=2, maximum=1000).global_batch
    assert steps(test, model, 2) == [wanted, wanted], "the same gradients ask for the same"
    assert test.ratio == pytest.approx(ratio, rel=1e-6)


def test_a_batch_grows_by_no_more_than_it_may_and_only_when_it_is_tested() -> None:
    model = small_model()
    test = NormTest(model, global_batch=2, micro_batch=4, maximum=16, eta=0.01, interval=2)
    assert steps(test, model, 6) == [4, 4, 8, 8, 16, 16]


def test_at_the_maximum_nothing_is_measured_any_more() -> None:
    model = small_model()
    test = NormTest(model, global_batch=8, micro_batch=8, maximum=17, eta=0.01)
    steps(test, model, 2)
    assert test.sizes.global_batch == 16 and test.statistics.paused and steps(test, model, 1) == [16]


def test_a_batch_may_grow_without_bound_or_by_a_little() -> None:
    model = small_model()
    assert steps(NormTest(model, global_batch=2, micro_batch=4, maximum=10_000, eta=1e-3, growth=math.inf), model, 1) == [10_000]
    assert steps(NormTest(small_model(), global_batch=4, micro_batch=4, maximum=100, eta=0.01, growth=1.2), small_model(), 0) == []
    slow = small_model()
    assert steps(NormTest(slow, global_batch=4, micro_batch=4, maximum=100, eta=0.01, growth=1.2), slow, 1) == [6], "2 micro-batches of 3"


def test_as_written_a_loop_keeps_its_number_of_micro_batches() -> None:
    model = small_model()
    test = NormTest(model, global_batch=12, micro_batch=4, maximum=10_000, eta=0.1, form="paper")
    steps(test, model, 1)
    assert test.ratio is not None and test.sizes.accumulation == 3
    assert test.sizes.global_batch == 3 * math.ceil(math.ceil(test.ratio / 0.01) / 3) > 24, "more than twice at once"


@pytest.mark.parametrize("form", ["unbiased", "paper"])
def test_a_process_alone_is_tested_whatever_its_micro_batch_has_room_for(form: Form) -> None:
    model, (inputs, targets) = small_model(), data()
    test = NormTest(model, global_batch=8, micro_batch=8, maximum=512, eta=0.01, form=form)
    assert (test.sizes.accumulation, test.sizes.micro_batch) == (2, 4)
    for start in (0, 4):
        nn.functional.cross_entropy(model(inputs[start : start + 4]), targets[start : start + 4]).div(2).backward()
    assert test.step([4, 4]).global_batch > 8 and test.ratio is not None


def test_no_batch_becomes_smaller() -> None:
    model = small_model()
    test = NormTest(model, global_batch=96, micro_batch=32, maximum=101, eta=1e-3)
    assert steps(test, model, 3)[-1] >= 96


def test_a_batch_that_passes_stays() -> None:
    model = small_model()
    assert steps(NormTest(model, global_batch=12, micro_batch=4, maximum=100, eta=100.0), model, 3) == [12, 12, 12]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_batch": 0, "maximum": 8}, "`global_batch = 0`"),
        ({"global_batch": 9, "maximum": 8}, "`maximum = 8`"),
        ({"global_batch": 4, "maximum": 8, "eta": 0.0}, "`eta = 0.0`"),
        ({"global_batch": 4, "maximum": 8, "interval": 0}, "`interval = 0`"),
        ({"global_batch": 4, "maximum": 8, "growth": 1.0}, "`growth = 1.0`"),
        ({"global_batch": 4, "maximum": 8, "micro_batch": 0}, "`micro_batch = 0`"),
    ],
)
def test_sizes_that_do_not_fit_each_other(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        NormTest(small_model(), **{"micro_batch": 2, **options})  # type: ignore[arg-type]


def test_the_example_under_fsdp_has_the_settings_of_tables_5_to_7() -> None:
    """Peak learning rate, batches and lengths are those of a small model."""
    path = ROOT / "examples" / "norm_test_fsdp.toml"
    job, choices = load_job(path), tomllib.loads(path.read_text())["space"]["parameters"]
    training, run_options = job.training, job.run_options
    assert (training.optimizer, training.adam_betas, training.precision) == ("adamw", (0.9, 0.95), "bf16")
    assert (training.decay, training.decay_all, training.gradient_clipping) == (0.1, True, 1.0)
    assert run_options.warmup_samples == round(run_options.samples / 100) and run_options.decay == "cosine"
    assert (run_options.final_share, run_options.scaling, run_options.statistics_every) == (0.1, "none", 1)
    assert job.cluster.devices == 4 and choices["zero_stage"] == 3 and max(choices["micro_batch"]) == 8
