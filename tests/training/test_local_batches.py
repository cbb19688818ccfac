"""If workers have local batches of their own, the gradient stays the mean over all samples, each of which counts once."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from oppa.errors import InputError
from oppa.problem.configuration import Configuration
from oppa.problem.training import RunOptions
from oppa.training.data.sources import source_of
from oppa.training.model.tensor_parallel import Slice, cross_entropy
from oppa.training.parallel.supported_layouts import require_shareable
from oppa.training.run.training_run import open_run
from oppa.training.statistics.noise_scale import Norms
from tests.training.families import TINY, configured
from tests.training.norms import mean, spec_of, square, whole
from tests.training.rank_pool import RankPool

SMALL = dataclasses.replace(TINY, layers=2, hidden=32, ffn=48, seq_len=16)
SHARED_OUT = [(5, 3), (7, 1), (1, 2, 9, 4), (32, 1, 1, 3)]


def uneven(local_batches: Sequence[int], *, zero_stage: int = 0, micro_batch: int = 4) -> Configuration:
    return Configuration(dp=len(local_batches), zero_stage=zero_stage, global_batch=sum(local_batches), micro_batch=micro_batch)


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [0, 1])
@pytest.mark.parametrize("local_batches", SHARED_OUT, ids=str)
def test_the_gradient_is_that_of_one_process_over_all_samples(
    local_batches: tuple[int, ...],
    zero_stage: int,
    pool: RankPool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = spec_of(uneven(local_batches, zero_stage=zero_stage), SMALL)
    found = pool.agreed("shared out", len(local_batches), spec, local_batches=local_batches)
    stage, batch = whole(SMALL, monkeypatch), source_of(spec).batch(0, range(sum(local_batches)))
    parameters = dict(stage.named_parameters())

    def gradient(start: int, stop: int) -> dict[str, torch.Tensor]:
        loss = cross_entropy(stage(batch.inputs[start:stop]), batch.targets[start:stop], SMALL.vocab, Slice())
        return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))

    right = gradient(0, sum(local_batches))
    wrong = {name: torch.tensor(found["gradients"][name], dtype=torch.float64) - each for name, each in right.items()}
    assert square(wrong) ** 0.5 < 1e-6 * square(right) ** 0.5
    sizes = [size for own in local_batches for size in [4] * (own // 4) + [own % 4] * (own % 4 > 0)]
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    each = [gradient(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    known = Norms(
        small=sum(size * square(one) for size, one in zip(sizes, each, strict=True)) / sum(sizes),
        big=square(mean(each, sizes)),
        small_tokens=SMALL.seq_len * sum(sizes) / len(sizes),
        big_tokens=SMALL.seq_len * sum(sizes),
    )
    assert found["norms"] == [pytest.approx(dataclasses.asdict(known), rel=1e-4)]


@pytest.mark.parametrize(
    ("configuration", "local_batches", "rule"),
    [
        (configured(tp=2), [8], "tp == pp"),
        (configured(dp=2, zero_stage=2), [4, 4], "zero_stage"),
        (configured(pp=1, model_chunks=2), [8], "tp == pp"),
        (configured(dp=2), [8], "one local batch for each of the dp workers"),
        (configured(dp=2), [8, 0], "give each worker at least one sample"),
        (configured(dp=2), [9, -1], "give each worker at least one sample"),
        (configured(dp=2), [4, 5], "add up"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(configuration: Configuration, local_batches: list[int], rule: str) -> None:
    with pytest.raises(InputError) as caught:
        require_shareable(SMALL, configuration, local_batches)
    assert rule in (caught.value.hint or "")


def test_a_mixture_of_experts_is_not_shared_out_unevenly() -> None:
    with pytest.raises(InputError) as caught:
        require_shareable(dataclasses.replace(SMALL, experts=4, experts_per_token=2), configured(dp=2), [5, 3])
    assert "mixture" in (caught.value.hint or "")


@pytest.mark.slow
def test_a_run_changes_its_local_batches_and_is_gone_on_with(tmp_path: Path) -> None:
    """Alone, where a local batch is the global one."""
    spec, run_options = spec_of(configured(), SMALL), RunOptions(samples=100)
    with open_run(spec, run_options, rank=0, world=1, rendezvous=f"file://{tmp_path}/one") as run:
        run.step()
        run.change(configured(global_batch=7, micro_batch=4), [7])
        step = run.step()
        assert step.samples == range(8, 15) and step.shares[0][:2] == (8, 15)
        with pytest.raises(InputError, match="local batches"):
            run.change(configured(global_batch=7, micro_batch=4, recompute="full"), [7])
        run.save(tmp_path / "saved")
        following = run.step().loss
    with open_run(spec, run_options, rank=0, world=1, rendezvous=f"file://{tmp_path}/two") as run:
        run.resume(tmp_path / "saved", configured(global_batch=7, micro_batch=4))
        assert run.local_batches == (7,) and run.step().loss == following
        run.change(configured(global_batch=8, micro_batch=4))
        assert run.local_batches == () and run.step().samples == range(22, 30)
