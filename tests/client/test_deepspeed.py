"""`EngineLoop` follows a plan with DeepSpeed's own engine: it trains as a plain loop does, and other layouts resume its checkpoints."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from oppa_client import run_files
from torch import nn

from tests.client.by_hand import batches, full_batches, order
from tests.client.engine_model import RATE, Samples, groups_of, layers
from tests.client.libraries import DEEPSPEED, deepspeed_python
from tests.own_trainer.folders import REFERENCE, TOTAL, reported

pytestmark = DEEPSPEED
ROOT = Path(__file__).parents[2]
CHANGES = {1: (12, 2), 3: (6, 3), 5: (9, 2)}
"""A larger batch, another micro-batch, and a batch that does not divide among two ranks."""
EVEN = {1: (12, 2), 3: (8, 4)}


def run_ranks(ranks: int, cases: Sequence[tuple[Path, dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Train attempts one after the other with ranks of torchrun; return what each rank saw of each."""
    program = Path(__file__).with_name("engine_program.py")
    launch = [deepspeed_python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(program)]
    paths = f"{ROOT}:{ROOT / 'client'}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "DS_ACCELERATOR": "cpu"}
    words = [*launch, json.dumps([(str(folder), options) for folder, options in cases])]
    done = subprocess.run(words, check=False, env=environment, timeout=280, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-9000:]
    return [[torch.load(folder / f"seen-{rank}.pt", weights_only=False) for rank in range(ranks)] for folder, _ in cases]


OF_A_THIRD_RANK = "zero_pp_rank_2_mp_rank_00_optim_states.pt"
"""A file that a save of three ranks has left, which was cut short before another one in its folder."""
RESTARTS = {
    "first": {"zero_stage": 1, "asked": {1: (12, 2)}, "leave_at": 3, "left_over": [f"step-5/state/{OF_A_THIRD_RANK}"]},
    "second": {"zero_stage": 2, "before": "first", "asked": {5: (6, 1)}, "first_number": 3, "leave_at": 7},
    "third": {"zero_stage": 1, "before": "second"},
    "finished": {"zero_stage": 1, "before": "third"},
    "tensor": {"zero_stage": 1, "dp": 1, "tp": 2, "before": "second"},
    "pipeline": {"zero_stage": 1, "dp": 1, "pp": 2, "before": "second"},
    "shards": {"zero_stage": 3, "asked": {1: (12, 2)}, "leave_at": 3},
}
"""A batch of 12 and another of 6, under ZeRO 1 and then 2. The rest under ZeRO 1, as two tensor-parallel and as two pipeline ranks."""
WARMUP = {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_max_lr": RATE, "warmup_type": "linear"}}
SCHEDULES = {
    "lambda": {"schedule": "lambda", "asked": {1: (16, 4)}, "total": 56},
    "warmup": {"zero_stage": 1, "config": {"scheduler": WARMUP}, "asked": {1: (16, 4)}, "total": 56},
}
REFUSED = {
    "another stage": {"zero_stage": 3, "before": "first"},
    "a metric": {"schedule": "plateau"},
    "fp16 without ZeRO": {"config": {"bf16": {"enabled": True}}},
    "micro-batches left": {"lazy": True},
    "a pass too many": {"eager": True},
    "accumulation of its own": {"zero_stage": 1, "config": {"managed_gradient_accumulation": False}},
}
"""Attempts that are errors, by what is wrong."""
SINGLE = {1: (12, 12), 3: (5, 5)}
"""Batches of one micro-batch."""
ALONE = {
    "alone": {"zero_stage": 2, "dp": 1, "before": "second"},
    "alone-shards": {"zero_stage": 3, "dp": 1, "before": "shards"},
    "in-two": {"zero_stage": 2, "dp": 1, "asked": SINGLE, "measured": True},
}
"""Attempts of one process, which resumes a checkpoint or trains from the beginning."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what two ranks saw in attempts of all kinds, and what one process saw that resumes one of them."""
    folder = tmp_path_factory.mktemp("engines")
    cases = {f"zero-{stage}": {"zero_stage": stage, "asked": CHANGES, "measured": True} for stage in range(4)}
    cases["pipeline-changes"] = {"pp": 2, "dp": 1, "asked": EVEN}
    cases["whole"], cases["whole-again"] = {"asked": EVEN, "leave_at": 5}, {"before": "whole"}
    cases |= RESTARTS | SCHEDULES | REFUSED
    found = dict(zip(cases, run_ranks(2, [(folder / name, options) for name, options in cases.items()]), strict=True))
    found |= dict(zip(ALONE, run_ranks(1, [(folder / name, options) for name, options in ALONE.items()]), strict=True))
    return {"folder": folder, **found}


def by_hand(
    sizes: Sequence[int], full: Sequence[int], micro_batches: Sequence[int] = ()
) -> tuple[list[torch.Tensor], dict[str, Any], list[Any]]:
    """Train a plain loop on the same batches, in float32.

    Returns:
        The loss of each sample of each step, the weights by name, and the norms of the first steps: mean squared norm over micro-batches of
        the sizes given, and squared norm of their mean.
    """
    model, data = nn.Sequential(*layers()), Samples()
    optimizer = torch.optim.AdamW(groups_of(model.parameters()), lr=RATE, eps=1e-4)
    losses, norms = [], []
    for index, (numbers, batch) in enumerate(zip(batches(sizes), full, strict=True)):
        each = nn.functional.cross_entropy(model(data.inputs[order(numbers)]), data.labels[order(numbers)], reduction="none")
        if index < len(micro_batches):
            norms.append([square(part.mean(), model) for part in each.split(micro_batches[index])] + [square(each.mean(), model)])
        each.mean().backward()
        for group in optimizer.param_groups:
            group["lr"] = RATE * (batch / REFERENCE) ** 0.5
        optimizer.step()
        optimizer.zero_grad()
        losses.append(each.detach())
    return losses, {name: value.detach().view(-1) for name, value in model.named_parameters()}, norms


def square(loss: torch.Tensor, model: nn.Module) -> float:
    gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    return sum(float(gradient.square().sum()) for gradient in gradients)


def require_same(folders: Sequence[Path], seen: Sequence[dict[str, Any]], replicas: int = 2) -> None:
    """Compare the losses of attempts that follow each other, and the last ranks' weights, with the plain loop."""
    lines = [line for folder in folders for line in reported(folder)]
    full = [batch for folder in folders for batch in full_batches(folder)]
    losses, weights, _ = by_hand([line["samples"] for line in lines], full)
    assert sum(line["samples"] for line in lines) == TOTAL
    # Rank 0 reports its own samples, which are the first ones.
    wanted = [each[: -(-len(each) // replicas)].mean().item() for each in losses[-len(reported(folders[-1])) :]]
    assert [line["loss"] for line in reported(folders[-1])] == pytest.approx(wanted, abs=1e-5)
    for rank in seen:
        for name, value in rank["weights"].items():
            if value.numel() == weights[name].numel():
                torch.testing.assert_close(value, weights[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("stage", range(4))
def test_under_every_stage_of_zero_it_trains_as_a_plain_loop(stage: int, seen: dict[str, Any]) -> None:
    folder, ranks = seen["folder"] / f"zero-{stage}", seen[f"zero-{stage}"]
    assert [line["samples"] for line in reported(folder)] == [8, 8, 8, 12, 12, 6, 6, 9, 9, 9, 9]
    steps = [
        [number for rank in step for micro_batch in rank for number in micro_batch]
        for step in zip(*(rank["steps"] for rank in ranks), strict=True)
    ]
    assert steps == [order(numbers) for numbers in batches([line["samples"] for line in reported(folder)])]
    require_same([folder], ranks)


@pytest.mark.parametrize("stage", range(4))
def test_gradients_are_measured_under_every_stage_of_zero(stage: int, seen: dict[str, Any]) -> None:
    folder = seen["folder"] / f"zero-{stage}"
    lines = reported(folder)
    sizes = [line["samples"] for line in lines]
    _, _, norms = by_hand(sizes, full_batches(folder), [2, 2, 2, 2, 2, 3])
    for (*small, big), (found,) in zip(norms, seen[f"zero-{stage}"][0]["norms"][:6], strict=True):
        assert found["small"] == pytest.approx(sum(small) / len(small), rel=1e-4)
        assert found["big"] == pytest.approx(big, rel=1e-4)
    assert lines[4]["noise"]["health"] and lines[4]["noise"]["signal"] is not None


def test_a_single_micro_batch_is_measured_in_two(seen: dict[str, Any]) -> None:
    folder, (rank,) = seen["folder"] / "in-two", seen["in-two"]
    lines = reported(folder)
    parts = {line["samples"]: [len(each) for each in step] for line, step in zip(lines, rank["steps"], strict=True)}
    assert (parts[8], parts[12], parts[5]) == ([2, 2, 2, 2], [6, 6], [3, 2])
    assert [line["noise"]["variance_ratio"] is None for line in lines] == [line["samples"] == 1 for line in lines]
    require_same([folder], [rank], replicas=1)


def test_a_pipeline_follows_the_plan(seen: dict[str, Any]) -> None:
    folder = seen["folder"] / "pipeline-changes"
    assert [line["samples"] for line in reported(folder)][2:6] == [8, 12, 12, 8]
    require_same([folder], seen["pipeline-changes"], replicas=1)


@pytest.mark.parametrize(
    ("names", "replicas"),
    [
        (("whole", "whole-again"), 2),
        (("first", "second", "third"), 2),
        (("first", "second", "alone"), 1),
        (("first", "second", "tensor"), 1),
        (("first", "second", "pipeline"), 1),
        (("shards", "alone-shards"), 1),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_other_degrees_go_on_from_a_checkpoint(names: tuple[str, ...], replicas: int, seen: dict[str, Any]) -> None:
    require_same([seen["folder"] / name for name in names], seen[names[-1]], replicas)


def test_a_finished_run_that_is_resumed_keeps_its_checkpoint_and_saves_no_other(seen: dict[str, Any]) -> None:
    before, after = (json.loads((seen["folder"] / name / run_files.LEFT).read_text()) for name in ("third", "finished"))
    assert [after[name] for name in ("checkpoint", "reason")] == [before["checkpoint"], "finished"]
    assert seen["finished"][0]["steps"] == [] and not (seen["folder"] / "finished" / "output").exists()


def test_schedules_count_samples(seen: dict[str, Any]) -> None:
    batch = [8, 8, 8, 16, 16]
    for name, scheduled in (("lambda", lambda at: min(1.0, (at + 1) / 3)), ("warmup", lambda at: min(1.0, max(0.0, at - 1) / 4))):
        lines = reported(seen["folder"] / name)
        assert [line["samples"] for line in lines] == batch
        wanted = [RATE * scheduled(sum(batch[:index]) / REFERENCE) * (batch[index] / REFERENCE) ** 0.5 for index in range(5)]
        assert [line["learning_rate"] for line in lines] == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("another stage", "`format = {'zero_stage': '1 or 2'}`, but the run has"),
        ("a metric", "the schedule `ReduceLROnPlateau` is no function of the progress"),
        ("fp16 without ZeRO", "cannot change with fp16 or bf16 without ZeRO"),
        ("micro-batches left", "after 0 of 2 micro-batches"),
        ("a pass too many", "`step.backward` was called without a micro-batch"),
        ("accumulation of its own", "`managed_gradient_accumulation = false`"),
    ],
)
def test_bad_input_is_an_error_that_names_it(name: str, message: str, seen: dict[str, Any]) -> None:
    assert all(message in rank["refused"] for rank in seen[name])
