"""A run of a user's own trainer goes on as it began, in a folder of its own."""

import pytest

from experiments.trainers.stop_after import StopAfter
from oppa import api
from oppa.cli.views.run_view import RunSessionView
from oppa.errors import InputError, RunError, TableError
from oppa.problem.job import load_job
from oppa.training.run import ledger
from oppa.training.run.run_folder import ATTEMPTS, RunSpec
from tests.own_trainer.own_runs import OwnRun


def attempts(own):
    return sorted(path.name for path in (own.run / ATTEMPTS).iterdir())


@pytest.mark.slow
def test_a_complete_run_starts_nothing_and_goes_on_if_it_gets_more_samples(tmp_path) -> None:
    own = OwnRun(tmp_path, samples=80)
    assert own.train().finished and attempts(own) == ["0001"]
    again = own.train()
    assert again.finished and again.outcome.attempts == 0 and attempts(own) == ["0001"]
    assert again.to_dict()["ending"] == "finished"
    own.settings.append("train.samples=160")
    assert own.train().finished and attempts(own) == ["0001", "0002"]
    assert own.samples() == list(range(160))


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_with_its_batch_alone(tmp_path) -> None:
    own = OwnRun(tmp_path)
    assert not own.train(callback=StopAfter(5)).finished
    own.settings.append("batch.global_batch=16")
    with pytest.raises(RunError, match="began with `global_batch = 8`, not 16") as refused:
        own.train()
    assert "global_batch=16" in refused.value.hint
    own.settings.pop()
    table = own.table(tmp_path / "t", {(8, "none"): 1.0, (16, "none"): 1.0})
    assert own.train("global_batch=16", table=table).finished
    assert own.events(ledger.STEP)[-1]["global_batch"] == 16
    rates = {line["global_batch"]: line["learning_rate"] for line in own.events(ledger.STEP)}
    assert rates[16] == pytest.approx(2**0.5 * rates[8])


def test_a_job_without_a_batch_goes_on_with_its_own_on_other_devices(tmp_path) -> None:
    own = OwnRun(tmp_path)
    own.job.write_text(own.job.read_text().replace("[batch]\nglobal_batch = 8\n", "").replace("micro_batch = [4]\n", ""))
    own.command = ["train", "--recompute", "{recompute}"]
    run = RunSpec(uuid="u", problem=own.problem, configuration=own.configuration(1))
    more = load_job(own.job, settings=["cluster.devices_per_host=2"], argv=own.command)
    assert (own.problem.global_batch, more.global_batch) == (1, 2)
    run.require_continued_by(more, own.run)


def test_a_trainer_of_whole_steps_that_has_ended_before_the_total_is_complete(tmp_path) -> None:
    own = OwnRun(tmp_path, samples=80)
    assert own.train().finished
    own.settings.append("train.samples=83")
    lines = (own.run / ledger.FILE).read_text()
    (own.run / ledger.FILE).write_text(lines.replace('"total": 80', '"total": 83').replace('"total":80', '"total":83'))
    assert own.train().outcome.attempts == 0


def test_the_folder_of_a_study_or_a_table_takes_no_run(tmp_path) -> None:
    own = OwnRun(tmp_path)
    own.run.mkdir()
    (own.run / "study.db").touch()
    with pytest.raises(RunError, match="is a study or a table, and no run"):
        own.train()


def test_a_table_of_a_launch_line_without_one_names_it(tmp_path) -> None:
    own = OwnRun(tmp_path)
    table = own.table(tmp_path / "t", {(8, "none"): 1.0})
    own.command = []
    with pytest.raises(TableError, match="this job has none") as refused:
        own.train(table=table, policy="goodput")
    assert "after `--`" in refused.value.hint
    best = tmp_path / "best.json"
    best.write_text("{}")
    with pytest.raises(InputError, match=r"best\.json"):  # it may be a configuration of a study
        api.train(best, table=table)


@pytest.mark.slow
def test_only_a_failure_that_another_attempt_follows_promises_one(tmp_path, capsys) -> None:
    own = OwnRun(tmp_path, "--misbehave", "no-resume", samples=400)
    own.train(callback=StopAfter(5))
    capsys.readouterr()
    assert own.train(callback=RunSessionView()).outcome.ending.value == "failed"
    printed = capsys.readouterr().err
    assert "attempt" in printed and "the run resumes from" not in printed.rpartition("failed")[2]
