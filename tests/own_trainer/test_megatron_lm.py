"""Megatron-LM's own program under oppa, on CPUs: arguments, sampler, growing batches, checkpoints, and broken contracts."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from oppa_client import run_files
from oppa_client.megatron import programs

from oppa.training.run import ledger
from tests.own_trainer.broken_contracts import REFUSED, UNDONE
from tests.own_trainer.folders import LAYOUT, TOTAL, ask, ask_to_leave, prepare, ranks, terms
from tests.own_trainer.megatron_runs import MegatronRun, checkout, iterations, program, trained

pytestmark = [pytest.mark.slow, pytest.mark.environment, pytest.mark.filterwarnings("ignore")]
RAMP = ("--rampup-batch-size", "8", "8", "8")
"""Megatron's own growth from 8 to 16 after 8 samples."""
SAMPLES = 640
BATCH, OTHER_LAYOUT = {(16, "none"): 1.0, (32, "none"): 0.9}, {(16, "none"): 0.05, (32, "full"): 0.045}
"""Steps per second, by batch and recomputation, of tables whose larger batch is one of the same layout, or of another one."""
PRINTED = 1e-5
"""Relative difference of two losses that Megatron prints with seven digits."""


@pytest.fixture(autouse=True)
def megatron() -> Path:
    return checkout()


def left(attempt: Path) -> dict[str, Any]:
    return dict(json.loads((attempt / run_files.LEFT).read_text()))


def growing(folder: Path, **changed: Any) -> Path:
    """Prepare an attempt whose batch grows from 8 to 16 after a step, at an unchanged learning rate."""
    folder = prepare(folder, plan=terms(exponent=0.0).to_dict(), **changed)
    ask(folder, 2, 16)
    return folder


def test_a_batch_that_grows_has_the_losses_of_megatrons_own_ramp_up(tmp_path):
    attempt = growing(tmp_path / "attempt")
    found = iterations(trained(tmp_path / "saved", attempt=attempt))
    expected = iterations(trained(tmp_path / "by-hand", *RAMP, batch=16))
    assert [batch for batch, _ in found.values()] == [8, 16, 16, 16, 16, 16]
    assert found == {number: (batch, pytest.approx(loss, rel=PRINTED)) for number, (batch, loss) in expected.items()}
    assert (left(attempt)["reason"], left(attempt)["samples"]) == ("finished", 88)


def test_a_run_that_leaves_and_resumes_has_the_losses_of_one_that_does_not(tmp_path):
    attempt = prepare(tmp_path / "first")
    ask_to_leave(attempt)
    found = iterations(trained(tmp_path / "saved", attempt=attempt))
    assert list(found) == [1]
    following = prepare(tmp_path / "second", before=attempt)
    found |= iterations(trained(tmp_path / "saved", attempt=following))
    expected = iterations(trained(tmp_path / "by-hand"))
    assert found == {number: (batch, pytest.approx(loss, rel=PRINTED)) for number, (batch, loss) in expected.items()}
    assert len(found) == TOTAL // 8 and left(following)["reason"] == "finished"


def test_a_checkpoint_states_the_position_of_the_run(tmp_path):
    from megatron.core import dist_checkpointing

    attempt = growing(tmp_path / "attempt")
    trained(tmp_path / "saved", attempt=attempt)
    stated = [json.loads(path.read_text()) for path in sorted(attempt.glob("saved-*.json"))]
    assert [(each["step"], each["samples"]) for each in stated] == [(1, 8), (6, 88)]
    for each in stated:
        assert dist_checkpointing.check_is_distributed_checkpoint(each["checkpoint"])
        common = dist_checkpointing.load_common_state_dict(each["checkpoint"])
        assert (common["iteration"], common["args"].consumed_train_samples) == (each["step"], each["samples"])
    assert programs.completed_iteration(str(tmp_path / "saved")) == 6


def test_two_replicas_go_on_as_two_tensor_parallel_ranks(tmp_path):
    attempt = prepare(tmp_path / "first", ranks=2)
    ask_to_leave(attempt)
    found = iterations(trained(tmp_path / "saved", ranks=2, attempt=attempt))
    following = prepare(tmp_path / "second", before=attempt)
    (following / "trial.json").write_text(json.dumps({"configuration": {**LAYOUT, "tp": 2}, "steps": 0}))
    found |= iterations(trained(tmp_path / "saved", "--tensor-model-parallel-size", "2", ranks=2, attempt=following))
    expected = iterations(trained(tmp_path / "by-hand", ranks=2))
    assert found == {number: (batch, pytest.approx(loss, rel=PRINTED)) for number, (batch, loss) in expected.items()}
    assert len(found) == TOTAL // 8


def test_megatrons_sampler_takes_each_sample_once_across_batches_and_layouts(tmp_path):
    from megatron.training.datasets.data_samplers import MegatronPretrainingSampler
    from oppa_client.megatron.loop import PlannedMicroBatches

    taken: list[int] = []
    for number, (replicas, micro_batch, batches) in enumerate([(2, 2, (8, 16)), (1, 4, (16, 32)), (2, 1, (6, 10, 8))]):
        steps = iter(())
        for batch in batches:
            (run, *_) = ranks(prepare(tmp_path / f"{number}-{batch}", plan=terms(batch, micro_batch, replicas).to_dict()), 1)
            loop = SimpleNamespace(micro_batch=micro_batch, replicas=replicas, names=programs.MegatronLM.names)
            count = PlannedMicroBatches(run, loop).get()
            if not taken or batch == batches[0]:  # a loader lasts for an attempt
                samplers = [iter(MegatronPretrainingSampler(TOTAL, len(taken), micro_batch, rank, replicas)) for rank in range(replicas)]
            steps = [next(sampler) for _ in range(count) for sampler in samplers]
            assert sum(map(len, steps)) == batch
            taken += [sample for micro in steps for sample in micro]
    assert taken == list(range(TOTAL))


def test_megatron_takes_the_options_of_a_restart_and_has_those_that_are_read(monkeypatch, tmp_path):
    from megatron.training.arguments import parse_args

    words = [*program("--micro-batch-size", "2")[2:], *programs.resume_words(str(tmp_path / "iter_0000007"), 7)]
    monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py", *words, "--dist-ckpt-optim-fully-reshardable"])
    args = parse_args()
    assert (args.load, args.ckpt_step, args.exit_on_missing_checkpoint) == (str(tmp_path), 7, True)
    loop = programs.MegatronLM()
    loop.args = args
    args.dataloader_type = args.dataloader_type or "single"  # as `validate_args` sets it
    known = {"iterations_to_skip", "no_load_optim", "no_save_optim", "finetune", "rampup_batch_size", "decrease_batch_size_if_needed"}
    known |= {"non_persistent_save_interval", "cuda_graph_scope"}
    assert known <= vars(args).keys() and not any(loop.obstacles(resumes=True).values())
    assert {"train_samples", "train_iters", "save", "fp16", "exit_interval", "micro_batch_size"} <= vars(args).keys()
    assert (args.ckpt_format, args.use_distributed_optimizer, programs._reshards(None)) == ("torch_dist", False, True)


def result_of(fault: str, folder: Path, table: dict[tuple[int, str], float], *train: str):
    run = MegatronRun(folder, fault, samples=SAMPLES, train=("reference_batch=16", *train))
    return run, run.train("global_batch=16", table=run.table(folder / "table", table), policy="stagewise")


@pytest.mark.parametrize("fault", REFUSED)
def test_a_loop_that_would_break_its_contract_again_is_refused_with_the_numbers(tmp_path, fault):
    asked = ("leave_timeout='2 s'",) if fault == "goes on" else ()
    _, result = result_of(fault, tmp_path, OTHER_LAYOUT if fault == "goes on" else BATCH, *asked)
    assert result.outcome.ending.value == "failed" and result.outcome.attempts == 1
    assert re.search(REFUSED[fault], result.outcome.last.cause), result.outcome.last.cause


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Losses of a training that keeps its batch, without oppa."""
    checkout()
    return iterations(trained(tmp_path_factory.mktemp("by-hand"), batch=16, micro_batch=4, samples=SAMPLES))


@pytest.mark.parametrize("fault", UNDONE)
def test_a_loop_that_fails_in_a_phase_of_a_restart_goes_on_in_the_layout_before(tmp_path, fault, undisturbed):
    run, result = result_of(fault, tmp_path, OTHER_LAYOUT)
    assert result.finished, result.outcome.last
    assert ledger.require_whole(result.lines) == SAMPLES
    assert [line["loss"] for line in run.events(ledger.STEP)] == pytest.approx([loss for _, loss in undisturbed.values()], rel=PRINTED)
    (undone,) = (line for line in ledger.read(run.run) if line["event"] == "undone")
    assert re.search(UNDONE[fault], undone["failure"]), undone["failure"]
    assert not [each for each in result.lines if each["event"] == ledger.CHANGED]
