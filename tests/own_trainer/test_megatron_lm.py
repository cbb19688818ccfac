"""Megatron-LM's own program under oppa, on CPUs: arguments, sampler, growing batches, checkpoints, and broken contracts."""

import json
import operator
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from oppa_client import run_files
from oppa_client.megatron import programs

from oppa.control.own_trainer.run_book import LEFT_BADLY
from oppa.training.run import ledger
from oppa.training.statistics.noise_scale import Smoothing
from tests.own_trainer.broken_contracts import REFUSED, UNDONE
from tests.own_trainer.folders import LAYOUT, TOTAL, ask, ask_to_leave, prepare, ranks, reported, terms
from tests.own_trainer.megatron_runs import MegatronRun, checkout, gradient_norms, iterations, program, trained

pytestmark = [pytest.mark.slow, pytest.mark.environment, pytest.mark.filterwarnings("ignore")]
RAMP = ("--rampup-batch-size", "8", "8", "8")
"""Megatron's own growth from 8 to 16 after 8 samples."""
SAMPLES = 640
BATCH, OTHER_LAYOUT = {(16, "none"): 1.0, (32, "none"): 0.9}, {(16, "none"): 0.05, (32, "full"): 0.045}
"""Steps per second, by batch and recomputation, of tables whose larger batch is one of the same layout, or of another one."""
PRINTED = 1e-5
"""Relative difference of two losses that Megatron prints with seven digits."""
DROPOUT = ("--attention-dropout", "0.1", "--hidden-dropout", "0.1")
KEPT = Smoothing().warming
"""Fraction that an average of gradient norms keeps at each step."""
TWO = [pytest.param(fault, 2, marks=pytest.mark.nightly) for fault in ("dies saving", "dies loading")]
"""Faults of one of two ranks, after which torchrun ends the other one."""
MEASURED = 34
"""Steps of a training with statistics, whose estimate is reliable after 32."""


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


def squares_of(noise: list[dict[str, float]]) -> list[float]:
    """Return the average |g|^2 of each step's gradient over a batch of 8, from the statistics that were reported."""
    return [each["signal"] + each["noise"] / 8 for each in noise]


def averages(printed: str) -> Any:
    """Return the same from the norms that Megatron prints with three digits: a step counts as `KEPT` of the one after it."""
    squares = [norm**2 for norm in gradient_norms(printed).values()]
    weights = [KEPT**age for age in range(len(squares))]
    sums = [sum(map(operator.mul, weights, reversed(squares[:end]))) for end in range(1, len(squares) + 1)]
    return pytest.approx([found / sum(weights[:end]) for end, found in enumerate(sums, 1)], rel=3e-3)


def test_a_batch_that_grows_has_the_losses_of_megatrons_own_ramp_up(tmp_path):
    attempt = growing(tmp_path / "attempt")
    found = iterations(trained(tmp_path / "saved", attempt=attempt))
    expected = iterations(trained(tmp_path / "by-hand", *RAMP, batch=16))
    assert [batch for batch, _ in found.values()] == [8, 16, 16, 16, 16, 16]
    assert found == {number: (batch, pytest.approx(loss, rel=PRINTED)) for number, (batch, loss) in expected.items()}
    assert (left(attempt)["reason"], left(attempt)["samples"]) == ("finished", 88)


@pytest.mark.parametrize("words", [(), DROPOUT], ids=["without dropout", "with dropout"])
def test_a_run_that_leaves_and_resumes_has_the_losses_of_one_that_does_not(tmp_path, words):
    attempt = prepare(tmp_path / "first")
    ask_to_leave(attempt)
    found = iterations(trained(tmp_path / "saved", *words, attempt=attempt))
    assert list(found) == [1]
    following = prepare(tmp_path / "second", before=attempt)
    found |= iterations(trained(tmp_path / "saved", *words, attempt=following))
    expected = iterations(trained(tmp_path / "by-hand", *words))
    assert found == {number: (batch, pytest.approx(loss, rel=PRINTED)) for number, (batch, loss) in expected.items()}
    assert len(found) == TOTAL // 8 and left(following)["reason"] == "finished"


def test_a_restart_with_a_smaller_batch_and_another_micro_batch_has_the_losses_of_megatron_alone(tmp_path):
    attempt = prepare(tmp_path / "first", plan=terms(16, 2, exponent=0.0).to_dict())
    ask_to_leave(attempt)
    found = iterations(trained(tmp_path / "saved", batch=16, attempt=attempt))
    smaller = {**terms(8, 4, exponent=0.0).to_dict(), "number": 2, "from_step": 1}
    following = prepare(tmp_path / "second", before=attempt, plan=smaller)
    found |= iterations(trained(tmp_path / "saved", micro_batch=4, attempt=following))
    by_hand = tmp_path / "by-hand"
    expected = iterations(trained(by_hand, "--exit-interval", "1", batch=16))
    expected |= iterations(trained(by_hand, "--load", str(by_hand), micro_batch=4))
    del expected[TOTAL // 8]  # Megatron alone takes as many iterations as if all had the last batch, and so takes samples beyond the total
    assert [batch for batch, _ in found.values()] == [16, *[8] * 10]
    assert found == {number: (batch, pytest.approx(loss, rel=PRINTED)) for number, (batch, loss) in expected.items()}
    assert (left(following)["reason"], left(following)["samples"]) == ("finished", TOTAL)


def test_the_noise_scale_is_that_of_megatrons_own_gradient_norms_across_a_restart_and_changes_no_loss(tmp_path):
    common: dict[str, Any] = {"ranks": 2, "samples": 8 * MEASURED}
    attempt = prepare(tmp_path / "first", ranks=2, total_samples=8 * MEASURED)
    ask_to_leave(attempt)
    first = trained(tmp_path / "saved", attempt=attempt, statistics=True, **common)
    following = prepare(tmp_path / "second", ranks=2, before=attempt, total_samples=8 * MEASURED)
    second = trained(tmp_path / "saved", attempt=following, statistics=True, **common)
    expected = iterations(trained(tmp_path / "by-hand", **common))
    found = {**iterations(first), **iterations(second)}
    assert found == {number: (batch, pytest.approx(loss, rel=PRINTED)) for number, (batch, loss) in expected.items()}
    noise = [line["noise"] for line in [*reported(attempt), *reported(following)]]
    assert [each["health"] for each in noise] == ["too_few_samples"] * 31 + ["healthy"] * 3 and noise[-1]["noise_scale"] > 0
    assert squares_of(noise) == averages(first + second)


def test_statistics_of_shards_that_are_reduced_meanwhile_are_those_of_megatrons_own_gradient_norms(tmp_path):
    sharded = ("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather")
    attempt = prepare(tmp_path / "attempt", ranks=2)
    printed = trained(tmp_path / "saved", *sharded, ranks=2, attempt=attempt, statistics=True)
    assert squares_of([line["noise"] for line in reported(attempt)]) == averages(printed)


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


def test_a_trial_takes_its_steps_and_saves_nothing(tmp_path):
    (tmp_path / "trial.json").write_text(json.dumps({"configuration": LAYOUT, "steps": 4}))
    assert list(iterations(trained(tmp_path / "saved", "--save-interval", "2", attempt=tmp_path))) == [1, 2, 3, 4]
    assert len(reported(tmp_path)) == 4 and not (tmp_path / "saved").exists()
    assert json.loads((tmp_path / "outcome.json").read_text())["outcome"] == "completed"


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


def result_of(fault: str, folder: Path, table: dict[tuple[int, str], float], *train: str, ranks: int = 1):
    run = MegatronRun(folder, fault, samples=SAMPLES, ranks=ranks, train=("reference_batch=16", *train))
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


@pytest.mark.parametrize(("fault", "ranks"), [*((fault, 1) for fault in UNDONE), *TWO])
def test_a_loop_that_fails_in_a_phase_of_a_restart_goes_on_in_the_layout_before(tmp_path, fault, ranks, undisturbed):
    run, result = result_of(fault, tmp_path, OTHER_LAYOUT, ranks=ranks)
    assert result.finished, result.outcome.last
    assert ledger.require_whole(result.lines) == SAMPLES
    assert [line["loss"] for line in run.events(ledger.STEP)] == pytest.approx([loss for _, loss in undisturbed.values()], rel=PRINTED)
    (undone,) = (line for line in ledger.read(run.run) if line["event"] == "undone")
    assert re.search(UNDONE[fault], undone["failure"]), undone["failure"]
    assert not [each for each in result.lines if each["event"] == ledger.CHANGED]


@pytest.mark.nightly
def test_a_rank_that_dies_once_all_have_left_has_left_nevertheless(tmp_path, undisturbed):
    run, result = result_of("dies left", tmp_path, OTHER_LAYOUT, ranks=2)
    assert result.finished and ledger.require_whole(result.lines) == SAMPLES, result.outcome.last
    steps = run.events(ledger.STEP)
    before = [line["loss"] for line in steps if line["global_batch"] == 16]
    assert before == pytest.approx([loss for _, loss in undisturbed.values()][: len(before)], rel=PRINTED)
    assert 0 < len(before) < len(steps) and len({line["configuration"] for line in steps}) == 2
    assert [line for line in ledger.read(run.run) if line["event"] == LEFT_BADLY]
