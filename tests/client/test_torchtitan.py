"""`OppaTrainer` follows a plan with torchtitan's own trainer: it trains as a plain loop does, and other layouts resume its checkpoints."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from oppa_client import ContractError, run_files
from torch import nn

from oppa.training import GradientStatistics
from tests.client.by_hand import batches, full_batches, order
from tests.client.libraries import TORCHTITAN
from tests.own_trainer.folders import REFERENCE, TOTAL, reported

pytestmark = TORCHTITAN
ROOT = Path(__file__).parents[2]
OWN_STATE = {"outside": True, "shares": "kept", "config": {"checkpoint.enable": True, "checkpoint.last_save_model_only": False}}
CASES = {
    "changes": {"asked": {1: (12, 2), 3: (6, 3), 5: (9, 2)}, "measured": True},
    "chunked": {"asked": {1: (12, 2)}, "config": {"chunked": True}, "total": 40},
    "first": {"asked": {1: (12, 2)}, "leave_at": 3, "save_every": 16},
    "second": {"asked": {6: (6, 1)}, "before": "first", "first_number": 3, "config": {"validator.enable": True}},
    "tensor": {"before": "first", "tp": 2, "config": {"parallelism.tensor_parallel_degree": 2}},
    "finished": {"before": "second"},
    "trial": {"trial": True, "save_every": 8},
    "outside": {**OWN_STATE, "config": {**OWN_STATE["config"], "training.steps": 3, "training.global_batch_size": 8}},
    "other data": {"before": "first", "smaller": True},
    "a pipeline": {"config": {"parallelism.pipeline_parallel_degree": 2}},
}
"""Attempts of two ranks, one after the other."""
ALONE = {
    "alone": {"before": "first"},
    "in-two": {"asked": {1: (12, 12), 3: (5, 5)}, "measured": True},
    "warm": {"initial": "first/output/checkpoint/step-5", "total": 16},
    "outside-alone": {**OWN_STATE, "config": {**OWN_STATE["config"], "training.steps": 5, "training.global_batch_size": 8}},
}
"""Attempts of one process, each of which resumes a checkpoint."""


def run_ranks(ranks: int, cases: Sequence[tuple[Path, dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Train attempts one after the other with ranks of torchrun; return what each rank saw of each."""
    program = Path(__file__).with_name("titan_program.py")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(program)]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "client"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    words = [*launch, json.dumps([(str(folder), options) for folder, options in cases])]
    done = subprocess.run(words, check=False, env=environment, timeout=500, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-9000:]
    return [[torch.load(folder / f"seen-{rank}.pt", weights_only=False) for rank in range(ranks)] for folder, _ in cases]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what two ranks saw in attempts of all kinds, and what one process saw that resumes some of them."""
    folder, found = tmp_path_factory.mktemp("titans"), {}
    for ranks, cases in ((2, CASES), (1, ALONE)):
        found |= dict(zip(cases, run_ranks(ranks, [(folder / name, options) for name, options in cases.items()]), strict=True))
    return {"folder": folder, **found}


def samples_of(ranks: Sequence[dict[str, Any]]) -> list[list[int]]:
    """Return the samples of each step, over all ranks."""
    steps = zip(*(rank["steps"] for rank in ranks), strict=True)
    return [[number for rank in step for micro_batch in rank for number in micro_batch] for step in steps]


def by_hand(begun: Sequence[torch.Tensor], lines: Sequence[dict[str, Any]], micro_batches: int = 0) -> dict[str, Any]:
    """Train the model alone, in a plain loop over the samples and with the learning rates that were reported.

    Args:
        begun: The weights at the beginning.
        lines: The reported steps.
        micro_batches: Size of the micro-batches whose gradients are measured in the first step; 0 measures nothing.
    """
    from tests.client.titan_model import DECAY, EPSILON, Samples, plain_model

    model, data, losses = plain_model(begun), Samples(), []
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), eps=EPSILON, weight_decay=DECAY)

    def loss_of(elements: Sequence[int]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(data.tokens[elements]).flatten(0, 1), data.labels[elements].flatten(), reduction="sum")

    found: dict[str, Any] = {}
    if micro_batches:
        statistics, elements = GradientStatistics(model), order(range(lines[0]["samples"]))
        parts = [elements[at : at + micro_batches] for at in range(0, len(elements), micro_batches)]
        counts = [int((data.labels[part] >= 0).sum()) for part in parts]
        for part in parts:
            (loss_of(part) / sum(counts)).backward()
        statistics.step(counts)
        found["norms"] = statistics.norms
        statistics.close()
        optimizer.zero_grad()
    for numbers, line in zip(batches([line["samples"] for line in lines]), lines, strict=True):
        elements = order(numbers)
        loss = loss_of(elements) / (data.labels[elements] >= 0).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = line["learning_rate"]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {**found, "losses": losses, "weights": [each.detach() for each in model.parameters()]}


def require_same(names: Sequence[str], seen: dict[str, Any], total: int = TOTAL) -> None:
    """Compare the losses of attempts that follow each other, and the last weights, with the plain loop."""
    lines = [line for name in names for line in reported(seen["folder"] / name)]
    assert sum(line["samples"] for line in lines) == total
    wanted = by_hand(seen[names[0]][0]["begun"], lines)
    assert [line["loss"] for line in lines] == pytest.approx(wanted["losses"], abs=1e-4)
    for rank in seen[names[-1]]:
        for own, plain in zip(rank["weights"], wanted["weights"], strict=True):
            torch.testing.assert_close(own, plain, rtol=1e-3, atol=1e-5)


def test_the_batch_changes_up_down_and_not_dividing_and_it_trains_as_a_plain_loop(seen: dict[str, Any]) -> None:
    lines = reported(seen["folder"] / "changes")
    assert [line["samples"] for line in lines] == [8, 8, 8, 12, 12, 6, 6, 9, 9, 9, 9]
    assert samples_of(seen["changes"]) == [order(numbers) for numbers in batches([line["samples"] for line in lines])]
    require_same(["changes"], seen)


def test_the_learning_rate_is_that_of_torchtitans_schedule_by_samples(seen: dict[str, Any]) -> None:
    from tests.client.titan_model import RATE

    folder = seen["folder"] / "changes"
    lines, wanted = reported(folder), []
    for numbers, batch in zip(batches([line["samples"] for line in lines]), full_batches(folder), strict=True):
        at = numbers.start / REFERENCE
        linear = min(1.0, (at + 1) / 3) if at < 4 else 1 - (at + 1 - 4) / 9
        wanted.append(RATE * linear * (batch / REFERENCE) ** 0.5)
    assert [line["learning_rate"] for line in lines] == pytest.approx(wanted)


def test_gradients_are_measured_as_in_a_plain_loop(seen: dict[str, Any]) -> None:
    lines, (found,) = reported(seen["folder"] / "changes"), seen["changes"][0]["norms"][0]
    (wanted,) = by_hand(seen["changes"][0]["begun"], lines[:1], micro_batches=2)["norms"]
    for name in ("small", "big"):
        assert found[name] == pytest.approx(getattr(wanted, name), rel=1e-3)
    assert lines[4]["noise"]["health"] and lines[4]["noise"]["signal"] is not None


def test_a_single_micro_batch_is_measured_in_two(seen: dict[str, Any]) -> None:
    (rank,), lines = seen["in-two"], reported(seen["folder"] / "in-two")
    parts = {line["samples"]: [len(each) for each in step] for line, step in zip(lines, rank["steps"], strict=True)}
    assert (parts[8], parts[12], parts[5]) == ([2, 2, 2, 2], [6, 6], [3, 2])
    assert [line["noise"]["variance_ratio"] is None for line in lines] == [line["samples"] == 1 for line in lines]
    require_same(["in-two"], seen)


def test_a_loss_in_chunks_follows_the_plan(seen: dict[str, Any]) -> None:
    require_same(["chunked"], seen, total=40)


@pytest.mark.parametrize("last", ["second", "alone", "tensor"])
def test_other_degrees_go_on_from_a_checkpoint(last: str, seen: dict[str, Any]) -> None:
    sizes = [line["samples"] for name in ("first", last) for line in reported(seen["folder"] / name)]
    if last != "tensor":
        assert samples_of(seen["first"]) + samples_of(seen[last]) == [order(numbers) for numbers in batches(sizes)]
    require_same(["first", last], seen)


def test_validation_counts_samples_and_is_a_pause(seen: dict[str, Any]) -> None:
    begun, freq = 48, 4 * REFERENCE
    lines = reported(seen["folder"] / "second")
    ends = [begun + sum(line["samples"] for line in lines[:count]) for count in range(len(lines))]
    paused = [after // freq > before // freq for before, after in itertools.pairwise([begun, *ends])]
    assert [line["paused_s"] > 0 for line in lines] == paused and any(paused)


def test_checkpoints_come_on_the_way_and_are_those_of_the_run_alone(seen: dict[str, Any]) -> None:
    folder = seen["folder"] / "first"
    assert [path.name for path in sorted(folder.glob("saved-*.json"))] == ["saved-2.json", "saved-4.json"]
    assert sorted(path.name for path in (folder / "output" / "checkpoint").iterdir()) == ["step-2", "step-4", "step-5"]
    left = json.loads((folder / run_files.LEFT).read_text())
    assert (left["reason"], left["step"], left["samples"]) == ("layout", 5, 48)


def test_a_finished_run_that_is_resumed_keeps_its_checkpoint_and_saves_no_other(seen: dict[str, Any]) -> None:
    before, after = (json.loads((seen["folder"] / name / run_files.LEFT).read_text()) for name in ("second", "finished"))
    assert [after[name] for name in ("checkpoint", "reason")] == [before["checkpoint"], "finished"]
    assert seen["finished"][0]["steps"] == [] and not (seen["folder"] / "finished" / "output" / "checkpoint").exists()


def test_it_begins_with_the_weights_that_the_configuration_names(seen: dict[str, Any]) -> None:
    lines = reported(seen["folder"] / "warm")
    assert [line["samples"] for line in lines] == [8, 8]
    wanted = by_hand(seen["first"][0]["weights"], lines)
    assert [line["loss"] for line in lines] == pytest.approx(wanted["losses"], abs=1e-4)


def test_a_trial_ends_after_its_steps_and_saves_nothing(seen: dict[str, Any]) -> None:
    folder = seen["folder"] / "trial"
    assert len(seen["trial"][0]["steps"]) == 3
    assert json.loads((folder / "outcome.json").read_text())["outcome"] == "completed"
    assert not (folder / "output" / "checkpoint").exists()


def test_outside_oppa_another_number_of_replicas_goes_on_with_the_next_sample(seen: dict[str, Any]) -> None:
    steps = samples_of(seen["outside"]) + samples_of(seen["outside-alone"])
    assert steps == [order(range(begin, begin + 8)) for begin in range(0, 40, 8)]
    assert seen["outside-alone"][0]["samples"] == 40


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other data", "the checkpoint has `size = 50`, but the run has `size = 40`"),
        ("a pipeline", "cannot change with pipeline parallelism"),
    ],
)
def test_bad_input_is_an_error_that_names_it(name: str, message: str, seen: dict[str, Any]) -> None:
    assert all(message in rank["refused"] for rank in seen[name])


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("parallelism.context_parallel_degree", 2, "context parallelism"),
        ("parallelism.expert_parallel_degree", 2, "expert parallelism"),
        ("parallelism.tensor_parallel_degree", 2, "gradient statistics under tensor parallelism"),
        ("training.enable_cpu_offload", True, "`training.enable_cpu_offload`"),
        ("loss.chunked", True, "gradient statistics under `ChunkedLossWrapper`"),
    ],
)
def test_a_configuration_that_does_not_go_with_a_changing_batch_is_named(place: str, value: Any, message: str, tmp_path: Path) -> None:
    from oppa_client.torchtitan.support import require_supported

    from tests.client.titan_model import config_of

    changed = {"chunked": True} if place == "loss.chunked" else {place: value}
    with pytest.raises(ContractError, match=message):
        require_supported(config_of(tmp_path, **changed), measured=True)
