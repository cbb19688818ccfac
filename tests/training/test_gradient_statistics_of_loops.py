"""Gradient statistics of a loop of one's own in one process: scaled losses, frozen layers, refusals, and the check."""

import copy
import dataclasses
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from oppa.errors import InputError
from oppa.training import GradientStatistics, check_gradient_statistics
from oppa.training.statistics.noise_scale import Health, Norms
from tests.training.norms import assert_same, mean, norms_of, square


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 2).double()


def backward(model: nn.Module, sizes: Sequence[int], *, scale: float = 1.0) -> list[dict[str, Tensor]]:
    """Return the gradient of each micro-batch; their mean, in which all count alike, becomes the model's."""
    found = []
    for size in sizes:
        x, alone = torch.randn(size, 4, dtype=torch.float64), copy.deepcopy(model)
        alone.zero_grad()
        alone(x).square().mean().backward()
        found.append({name: parameter.grad for name, parameter in alone.named_parameters() if parameter.grad is not None})
        (model(x).square().mean() * scale / len(sizes)).backward()
    return found


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_micro_batches_may_count_equally_and_losses_be_scaled(scale: float) -> None:
    model, sizes = linear(), [5, 3, 1]
    statistics = GradientStatistics(model, weighting="equally")
    each = backward(model, sizes, scale=scale)
    statistics.step(sizes, loss_scale=scale)
    small_tokens = 3 / sum(1 / size for size in sizes)
    small, big = sum(map(square, each)) / 3, square(mean(each, [1, 1, 1]))
    assert_same([list(statistics.norms)], [[Norms(small=small, big=big, small_tokens=small_tokens, big_tokens=3 * small_tokens)]])


def test_norms_may_be_those_that_adam_sees() -> None:
    model = linear()
    adam = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), eps=1e-3)
    statistics = GradientStatistics(model, preconditioned_by=adam)
    backward(model, [2, 2])
    assert statistics.step([2, 2]).health is Health.NOT_FINITE, "Adam has no denominators before its first step"
    adam.step()
    model.zero_grad()
    seen = backward(model, [2, 2])
    statistics.step([2, 2])
    denominators = {name: (adam.state[p]["exp_avg_sq"] / (1 - 0.99)).sqrt() + 1e-3 for name, p in model.named_parameters()}
    scaled = [{name: value / denominators[name].sqrt() for name, value in one.items()} for one in seen]
    assert_same([list(statistics.norms)], [[norms_of(scaled, 2)]])


def test_gradients_that_are_not_finite_are_reported() -> None:
    model = linear()
    statistics = GradientStatistics(model)
    model(torch.full((2, 4), torch.inf, dtype=torch.float64)).sum().backward()
    assert statistics.step([1, 1]).health is Health.NOT_FINITE


def test_what_is_not_watched_any_more_is_not_seen() -> None:
    model = linear()
    closed, statistics = GradientStatistics(model), GradientStatistics(model)
    closed.close()
    backward(model, [2, 2])
    closed.step([2, 2])
    assert closed.norms[0].small == 0
    statistics.step([2, 2])
    assert statistics.norms[0].small > 0


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """Let this process be one of two ranks, whose peer never answers."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("two_ranks")
def test_gradients_that_fsdp2_accumulates_apart_are_found_again_after_a_pause() -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model, found = fully_shard(linear().float(), mp_policy=policy), []
    statistics = GradientStatistics(model, over="workers")
    for _ in range(2):
        for index in range(2):
            model.set_requires_gradient_sync(index == 1)
            (model(torch.full((1, 4), index + 1.0)).square().mean() / 2).backward()
        statistics.step([1, 1])
        found.append(statistics.norms[0].small)
        statistics.pause()
        statistics.resume()
        model.zero_grad()
    assert found[0] == found[1] > 0


def test_a_model_that_was_watched_frees_its_memory() -> None:
    model = linear()
    statistics = GradientStatistics(model)
    backward(model, [2, 2])
    statistics.step([2, 2])
    weight = weakref.ref(model.weight)
    gc.disable()  # a cycle would be found, but some day
    try:
        del model, statistics
        assert weight() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("batch", [8.0, 8.0 * 2048], ids=["samples", "tokens"])
def test_averages_of_ones_own_loop_become_as_long_in_samples_as_in_tokens(batch: float) -> None:
    smoothing = GradientStatistics(linear()).noise_scale.smoothing
    assert [smoothing.keeps(batch, steps * batch) for steps in (1, 100, 200, 500, 10_000)] == pytest.approx([0.95, 0.95, 0.975, 0.99, 0.99])


def test_refusals() -> None:
    model = linear()
    statistics = GradientStatistics(model)
    backward(model, [2, 2])
    with pytest.raises(InputError, match="gradients of 2 backward passes"):
        statistics.step([4])
    with pytest.raises(InputError, match="tokens"):
        statistics.step([2, 0])
    with pytest.raises(InputError, match="second moments"):
        GradientStatistics(model, preconditioned_by=torch.optim.SGD(model.parameters(), lr=0.1))


def losses(model: nn.Module, sizes: Sequence[int]) -> list[Callable[[], Tensor]]:
    """Return the losses of micro-batches of random samples, which count alike in the mean."""
    batches = [torch.randn(size, 4, dtype=torch.float64) for size in sizes]
    return [lambda batch=batch: model(batch).square().sum() / sum(sizes) for batch in batches]


@pytest.mark.parametrize("measures_always", [True, False], ids=["each step", "every second step"])
def test_layers_may_be_frozen_and_unfrozen_during_training(measures_always: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    model[1].requires_grad_(True)
    statistics = GradientStatistics(model)
    for step, is_frozen in enumerate((False, True, True, False, False)):
        statistics.resume()
        model[0].requires_grad_(not is_frozen)
        small = 0.0
        for _ in range(2):
            before = [parameter.grad.clone() if parameter.grad is not None else 0.0 for parameter in model.parameters()]
            model(torch.randn(4, 3, dtype=torch.float64)).square().mean().div(2).backward()
            pairs = zip(model.parameters(), before, strict=True)
            small += sum(float((each.grad - was).square().sum()) for each, was in pairs if each.grad is not None and each.requires_grad)
        statistics.step([4, 4])
        (found,) = statistics.norms
        big = sum(float(each.grad.square().sum()) for each in model.parameters() if each.grad is not None and each.requires_grad)
        if measures_always or step != 3:  # what is unfrozen while hooks are there counts from the next measured step on
            assert (found.small, found.big) == pytest.approx((small * 2, big))
        if not is_frozen or step == 2:
            model.zero_grad()  # else the gradient of the frozen layer stays
        if not measures_always:
            statistics.pause()


def test_the_gradient_of_a_sparse_embedding_is_measured_as_that_of_a_dense_one() -> None:
    found = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(9, 4, sparse=sparse), nn.Linear(4, 2))
        statistics = GradientStatistics(model)
        for tokens in ([1, 1, 5], [5, 7, 8]):
            model(torch.tensor(tokens)).square().mean().backward()
        statistics.step([3, 3])
        found.append(dataclasses.astuple(statistics.norms[0]))
    assert found[1] == pytest.approx(found[0])


def test_a_model_whose_parameters_are_all_frozen_is_refused() -> None:
    with pytest.raises(InputError, match="no parameter of the model requires a gradient"):
        GradientStatistics(nn.Linear(2, 2).requires_grad_(False))


def test_the_check_leaves_a_model_and_random_numbers_as_they_were() -> None:
    model = nn.Sequential(linear(), nn.Dropout())
    weights, given = copy.deepcopy(model.state_dict()), losses(model, [5, 3, 1])
    state = torch.get_rng_state()
    assert check_gradient_statistics(model, given, [5, 3, 1]).error < 1e-9
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_check_knows_micro_batches_that_count_alike() -> None:
    model, sizes = linear(), [5, 3, 1]
    batches = [torch.randn(size, 4, dtype=torch.float64) for size in sizes]
    each = [lambda batch=batch: model(batch).square().mean() / 3 for batch in batches]
    assert check_gradient_statistics(model, each, sizes, weighting="equally").error < 1e-9


def test_the_check_finds_a_hook_that_changes_gradients() -> None:
    model, doubled = linear(), []

    def loss() -> Tensor:
        doubled or doubled.append(model.weight.register_hook(lambda gradient: 2 * gradient))
        return model(torch.ones(2, 4, dtype=torch.float64)).square().mean()

    with pytest.raises(InputError, match="gradient statistics of this model are wrong: squared norms") as caught:
        check_gradient_statistics(model, [loss, loss], [2, 2])
    assert "hook" in caught.value.hint


def test_the_check_refuses_losses_without_tokens() -> None:
    with pytest.raises(InputError, match="ranks have"):
        check_gradient_statistics(model := linear(), losses(model, [2, 2]), [2])
