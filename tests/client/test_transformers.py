"""`OppaTrainer` follows the plan of a run, sees each sample once and in order, and trains as a plain loop on the same batches."""

import json

import pytest
import torch
from oppa_client import ContractError
from oppa_client.loop.samples import SampleOrder
from oppa_client.transformers.loss_probe import is_divided
from oppa_client.transformers.support import require_supported
from transformers import Trainer

from tests.client.by_hand import batches, evaluations, full_batches, order, rate, require_reports, require_same
from tests.client.trainer_program import SIZE, Classifier, Measured, Samples, Watched, train, trainer
from tests.own_trainer.folders import TOTAL, reported, terms

pytestmark = pytest.mark.slow
CHANGES = {2: (12, 2), 4: (5, 2), 7: (6, 3)}
"""A larger batch, one that no micro-batch divides, and another micro-batch."""


def test_outside_oppa_it_is_the_trainer(tmp_path):
    ours, plain = train(trainer(tmp_path / "ours", max_steps=4)), trainer(tmp_path / "plain", Trainer, max_steps=4)
    plain.train()
    assert plain.state.global_step == 4
    for name, value in plain.model.state_dict().items():
        assert torch.equal(ours["weights"][name], value)


def test_at_a_constant_batch_it_trains_as_the_trainer(attempt_at, tmp_path):
    plain = trainer(tmp_path / "plain", Trainer, max_steps=6)
    plain.train()
    seen = train(trainer(attempt_at("run", total_samples=48), max_steps=6))
    for name, value in plain.model.state_dict().items():
        assert torch.equal(seen["weights"][name], value)
    kept = ("loss", "grad_norm", "learning_rate", "epoch", "eval_loss", "step", "train_loss", "total_flos")
    logs = [[{name: each[name] for name in kept if name in each} for each in of] for of in (seen["logs"], plain.state.log_history)]
    assert logs[0] == logs[1]


def test_the_batch_changes_up_down_and_not_dividing(attempt_at):
    folder = attempt_at("run")
    seen = train(trainer(folder, asked=CHANGES))
    sizes = [line["samples"] for line in reported(folder)]
    full = full_batches(folder)
    assert full[:9] == [8, 8, 8, 12, 12, 5, 5, 5, 6] and sum(sizes) == TOTAL
    assert [step["samples"] for step in seen["steps"]] == [order(numbers) for numbers in batches(sizes)]
    rates = [rate(numbers.start, batch) for numbers, batch in zip(batches(sizes), full, strict=True)]
    assert [line["learning_rate"] for line in reported(folder)] == pytest.approx(rates)
    require_same(seen, sizes, full)
    left = json.loads((folder / "left.json").read_text())
    assert (left["reason"], left["samples"], left["step"]) == ("finished", TOTAL, len(sizes))


class Mean(torch.nn.Module):
    """Returns the mean loss of its inputs, as models do that take no `num_items_in_batch`."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self, input_ids, labels):
        return {"loss": (self.weight * (input_ids / 96 + 1)).sum(dim=1).mean()}


def test_a_mean_loss_counts_each_sample_alike(attempt_at):
    folder = attempt_at("run", plan=terms(5, 2, reference_batch=5).to_dict(), total_samples=5)  # micro-batches of 2, 2 and 1
    made = trainer(folder, model_is=Mean(), optim="sgd", lr_scheduler_type="constant", warmup_steps=0, max_grad_norm=0, eval_strategy="no")
    seen = train(made)
    gradient = (Samples().tokens[order(range(5))] / 96 + 1).mean(dim=0)
    assert torch.allclose(seen["weights"]["weight"], -0.01 * gradient, rtol=1e-5)
    assert reported(folder)[0]["tokens"] is None


def norms(seen):
    return [each["grad_norm"] for each in seen["logs"] if "grad_norm" in each]


def test_a_mean_loss_does_not_grow_with_the_micro_batches_though_its_model_takes_the_arguments_of_a_loss(attempt_at):
    found = []
    for micro_batch in (8, 3, 1):
        folder = attempt_at(f"run-{micro_batch}", plan=terms(8, micro_batch).to_dict(), total_samples=24)
        seen = train(trainer(folder, model_is=Classifier(), eval_strategy="no"))
        found.append([*norms(seen), *(line["loss"] for line in reported(folder))])
        assert {line["tokens"] for line in reported(folder)} == {None}
    assert found[1:] == [pytest.approx(found[0], rel=1e-4)] * 2


class Unlike(Watched):
    """Has a loss of its own, a sum over the labels of a step."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return super().compute_loss(model, inputs, return_outputs, None) * len(inputs["labels"]) / num_items_in_batch


@pytest.mark.parametrize(("kind", "divided"), [(Watched, False), (Unlike, True)])
def test_the_first_step_finds_out_how_a_loss_counts_and_changes_nothing(attempt_at, kind, divided):
    states = []
    for is_known in (True, False):
        made = trainer(attempt_at(str(is_known), total_samples=8), kind, model_is=Classifier(dropout=0.2), eval_strategy="no")
        if is_known:
            made._is_divided = divided
            made.loss_is_scaled_for_ga = None if divided else False
        states.append(train(made))
        assert made._is_divided is divided
    assert "norm.running_mean" in states[0]["weights"]
    for name, value in states[0]["weights"].items():
        assert torch.equal(states[1]["weights"][name], value), name
    assert norms(states[0]) == norms(states[1])


def test_a_loss_without_labels_tells_nothing(attempt_at):
    made = trainer(attempt_at("run"))
    nothing = {"input_ids": torch.zeros(2, 8, dtype=torch.long), "labels": torch.full((2, 8), -100)}
    assert is_divided(made, made.model, nothing) is None
    assert is_divided(made, made.model, {**nothing, "labels": nothing["input_ids"]}) is True


def test_gradients_are_measured_as_in_a_plain_loop_and_the_estimate_goes_on(attempt_at):
    first = attempt_at("first", total_samples=48)
    train(trainer(first, Measured, leave_at=2))
    require_reports(first)
    second = attempt_at("second", before=first, total_samples=48)
    train(trainer(second, Measured))
    whole = attempt_at("whole", total_samples=48)
    train(trainer(whole, Measured))
    assert [line["noise"] for line in reported(second)] == [line["noise"] for line in reported(whole)[3:]]


def test_a_class_that_states_a_mean_loss_is_measured_by_samples(attempt_at):
    found = []
    for stated in (None, False):  # the first step finds out, or the class states it
        made = trainer(folder := attempt_at(str(stated), total_samples=24), Measured, model_is=Classifier(), eval_strategy="no")
        made.loss_is_scaled_for_ga = stated
        train(made)
        found.append([line["noise"] for line in reported(folder)])
    assert found[0] == found[1] and found[0][-1]["noise"] is not None


def test_random_numbers_go_on_where_a_run_left(attempt_at):
    whole = train(trainer(attempt_at("whole", total_samples=48), dropout=0.2))
    first = attempt_at("first", total_samples=48)
    train(trainer(first, leave_at=2, dropout=0.2))
    assert len(reported(first)) == 3
    seen = train(trainer(attempt_at("second", before=first, total_samples=48), dropout=0.2))
    for name, value in whole["weights"].items():
        assert torch.equal(seen["weights"][name], value)
    assert evaluations(seen) == evaluations(whole)


def test_a_training_that_a_callback_stops_has_saved_all_and_goes_on_as_if_it_had_not_stopped(attempt_at):
    whole = train(trainer(attempt_at("whole", total_samples=48), dropout=0.2))
    first = attempt_at("first", total_samples=48)
    seen = train(trainer(first, stop_after=4, dropout=0.2))
    assert len(reported(first)) == 4 and list(evaluations(seen)) == [4], "the run has not asked it to leave, so it evaluates first"
    left = json.loads((first / "left.json").read_text())
    assert (left["reason"], left["step"], left["samples"]) == ("stop", 4, 32)
    seen = train(trainer(attempt_at("second", before=first, total_samples=48), dropout=0.2))
    for name, value in whole["weights"].items():
        assert torch.equal(seen["weights"][name], value)
    assert evaluations(seen) == evaluations(whole)


def test_a_training_that_stops_early_ends_with_its_best_weights_and_resumes_its_last_ones(attempt_at):
    kept = {"save_strategy": "steps", "save_steps": 2, "eval_steps": 2, "load_best_model_at_end": True, "learning_rate": 1.0}
    first = attempt_at("first", total_samples=48)
    made = trainer(first, stop_after=4, **kept)  # so large a rate that the first evaluation is the best
    train(made)
    assert made.evaluate()["eval_loss"] == pytest.approx(made.state.best_metric)
    left = json.loads((first / "left.json").read_text())
    assert left["reason"] == "stop" and left["checkpoint"].endswith("checkpoint-4")
    second = attempt_at("second", before=first, total_samples=48)
    assert train(trainer(second, **kept))["steps"][0]["step"] == 4


def test_an_evaluation_that_was_due_on_leaving_is_made_by_the_next_attempt(attempt_at):
    first = attempt_at("first", total_samples=48)
    seen = train(trainer(first, leave_at=3))
    assert len(reported(first)) == 4 and evaluations(seen) == {}
    seen = train(trainer(attempt_at("second", before=first, total_samples=48)))
    assert list(evaluations(seen)) == [4, 6]


def test_the_checkpoint_of_a_run_outlives_a_limit_that_keeps_the_best_one_alone(attempt_at):
    kept = {"save_strategy": "steps", "save_steps": 2, "eval_steps": 2, "save_total_limit": 1, "load_best_model_at_end": True}
    first = attempt_at("first", total_samples=48)
    train(trainer(first, leave_at=2, learning_rate=1.0, **kept))  # so large a rate that the first checkpoint is the best
    assert sorted(path.name for path in (first / "output").iterdir()) == ["checkpoint-2", "checkpoint-3"]
    seen = train(trainer(attempt_at("second", before=first, total_samples=48), learning_rate=1.0, **kept))
    assert list(evaluations(seen)) == [2, 4, 6]


def test_without_samples_the_last_step_is_a_whole_one(attempt_at):
    folder = attempt_at("run", total_samples=None)
    train(trainer(folder, max_steps=-1, num_train_epochs=0.5, eval_strategy="no"))  # 25 samples
    assert [line["samples"] for line in reported(folder)] == [8, 8, 8, 8]
    assert json.loads((folder / "left.json").read_text())["reason"] == "finished"


def test_a_finished_run_that_is_resumed_keeps_its_checkpoint_and_saves_no_other(attempt_at):
    first = attempt_at("first", total_samples=24)
    train(trainer(first))
    second = attempt_at("second", before=first, total_samples=24)
    assert train(trainer(second))["steps"] == []
    before, after = (json.loads((folder / "left.json").read_text()) for folder in (first, second))
    assert [after[name] for name in ("checkpoint", "step", "reason")] == [before["checkpoint"], 3, "finished"]
    assert not list((second / "output").glob("checkpoint-*"))


def test_a_second_training_of_one_program_is_refused_and_takes_no_step(attempt_at):
    folder = attempt_at("run", total_samples=24)
    train(trainer(folder, eval_strategy="no"))
    with pytest.raises(ContractError, match="a run is one training"):
        trainer(folder, eval_strategy="no").train()
    assert len(reported(folder)) == 3


class DeathError(RuntimeError):
    """Ends a rank while it saves."""


class DiesWhileItSaves(Watched):
    """Fails once its second checkpoint is saved and oppa has not been given it."""

    def _stated(self):
        if self.state.global_step == 4:
            raise DeathError
        return super()._stated()


def test_a_death_before_a_checkpoint_is_stated_leaves_the_one_before(attempt_at):
    kept = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1, "eval_strategy": "no"}
    first = attempt_at("first", total_samples=48)
    with pytest.raises(DeathError):
        train(trainer(first, DiesWhileItSaves, **kept))
    stated = json.loads((first / "saved-2.json").read_text())["checkpoint"]
    assert not (first / "saved-4.json").exists() and (first / "output" / "checkpoint-2" / "oppa_position.json").exists()
    assert stated.endswith("checkpoint-2")
    whole = attempt_at("whole", total_samples=48)
    train(trainer(whole, **kept))
    assert [path.name for path in (whole / "output").iterdir()] == ["checkpoint-6"]


class Doubled(Trainer):
    """Doubles each loss."""

    def compute_loss(self, *inputs, **options):
        return super().compute_loss(*inputs, **options) * 2


class Mixed(Watched, Doubled):
    """Follows the plan with the loss of another Trainer."""


def test_a_trainer_of_ones_own_follows_the_plan_with_its_own_methods(attempt_at):
    losses = []
    for kind in (Watched, Mixed):
        folder = attempt_at(kind.__name__, total_samples=8)
        train(trainer(folder, kind, eval_strategy="no"))
        losses.append(reported(folder)[0]["loss"])
    assert losses[1] == pytest.approx(2 * losses[0])


def test_intervals_count_samples(attempt_at):
    folder = attempt_at("run", plan={**json.loads((attempt_at("other") / "attempt.json").read_text())["plan"], "global_batch": 24})
    seen = train(trainer(folder, eval_steps=5, save_strategy="steps", save_steps=6))
    assert list(evaluations(seen)) == [2, 4]  # after 48 and 96 samples; 40 and 80 were passed
    assert sorted(path.name for path in folder.glob("saved-*.json")) == ["saved-2.json", "saved-4.json"]


def test_workers_load_what_the_plan_says(attempt_at):
    folder = attempt_at("run", total_samples=40)
    seen = train(trainer(folder, asked={1: (12, 3)}, dataloader_num_workers=1, eval_strategy="no"))
    sizes = [line["samples"] for line in reported(folder)]
    assert sizes == [8, 8, 12, 12]
    assert [step["samples"] for step in seen["steps"]] == [order(numbers) for numbers in batches(sizes)]


def test_a_trial_ends_after_its_steps(attempt_at):
    folder = attempt_at("trial")
    (folder / "attempt.json").unlink()
    seen = train(trainer(folder))
    assert [step["step"] for step in seen["steps"]] == [0, 1, 2]
    assert json.loads((folder / "outcome.json").read_text())["outcome"] == "completed"
    assert not (folder / "output").is_dir() or not any((folder / "output").iterdir())


@pytest.mark.parametrize("strategy", ["steps", "best"])
def test_a_trial_saves_nothing_and_removes_no_checkpoint_of_the_user(attempt_at, strategy):
    folder = attempt_at("trial")
    (folder / "attempt.json").unlink()
    for step in (100, 200):
        (folder / "output" / f"checkpoint-{step}").mkdir(parents=True)
    seen = train(trainer(folder, save_strategy=strategy, save_steps=1, eval_steps=1, save_total_limit=1, metric_for_best_model="loss"))
    assert len(seen["steps"]) == 3
    assert sorted(path.name for path in (folder / "output").iterdir()) == ["checkpoint-100", "checkpoint-200"]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"train_sampling_strategy": "group_by_length"}, "group_by_length"),
        ({"save_only_model": True}, "save_only_model"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau", "metric_for_best_model": "loss"}, "ReduceLROnPlateau"),
    ],
)
def test_what_cannot_follow_a_plan_is_refused(attempt_at, changed, named):
    with pytest.raises(ContractError, match=named):
        trainer(attempt_at("run"), **changed).train()


def test_ranks_that_train_apart_are_refused(attempt_at, monkeypatch):
    made = trainer(attempt_at("run"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ContractError, match=r"1 ranks of the Trainer \(on CPUs, `--use_cpu` joins them\), where the launcher started 2"):
        require_supported(made)


def test_a_checkpoint_of_another_run_is_refused(attempt_at, monkeypatch):
    first = attempt_at("first", total_samples=48)
    train(trainer(first, leave_at=1))
    with pytest.raises(ContractError, match="seed"):
        trainer(attempt_at("second", before=first), seed=9).train()
    position = next(first.glob("output/*/oppa_position.json"))
    stated = json.loads(position.read_text())
    position.write_text(json.dumps({**stated, "format": "of FSDP, with the `state_dict_type` FULL_STATE_DICT"}))
    with pytest.raises(ContractError, match="FULL_STATE_DICT"):
        trainer(attempt_at("third", before=first)).train()
    monkeypatch.delenv("OPPA_TRIAL")
    with pytest.raises(ContractError, match="resume it with `oppa train`"):
        trainer(first).train(resume_from_checkpoint=True)


@pytest.mark.parametrize("seed", [0, None])
def test_each_element_comes_once_in_an_epoch(seed):
    for epoch in range(3):
        elements = SampleOrder(SIZE, seed).of(range(epoch * SIZE, (epoch + 1) * SIZE))
        assert sorted(elements) == [*range(SIZE)]
