"""A profile's plan counts configurations at each batch, bounds the cost, and starts nothing."""

from pathlib import Path

import pytest

import oppa
from tests.profiled_job import JOB

BATCHES = "64..256"


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(JOB.format(limit="12 GiB"))
    return tmp_path / "job.toml"


def test_it_counts_each_batch_and_makes_no_folder(job: Path) -> None:
    plan = oppa.plan_profile(job, global_batch=BATCHES)
    assert [each.global_batch for each in plan.batches] == [64, 128, 256] and [*job.parent.iterdir()] == [job]
    assert all(0 < each.fitting <= each.configurations for each in plan.batches)
    assert plan.trials == (3, sum(each.fitting for each in plan.batches)) and plan.first is not None
    assert plan.first.global_batch == 64 and plan.loss_bound == 0.01


def test_profiles_cost_what_their_plans_say(job: Path) -> None:
    plan = oppa.plan_profile(job, global_batch="64,128", exhaustive=True)
    found = oppa.profile(job, global_batch="64,128", exhaustive=True).table
    assert plan.trials == (found.origin.trials,) * 2
    assert plan.seconds[0] < found.origin.spent_s < plan.seconds[1]
    assert plan.first in [row.configuration for row in found.rows]


def test_limits_bound_the_plan(job: Path) -> None:
    every = oppa.plan_profile(job, global_batch=BATCHES)
    two = oppa.plan_profile(job, global_batch=BATCHES, trials=2)
    assert two.trials == (2, 2) and two.seconds[1] == pytest.approx(every.seconds[1] * 2 / every.trials[1])
    assert oppa.plan_profile(job, global_batch=BATCHES, wall_time_s=5.0).seconds[1] == 5.0
    assert oppa.plan_profile(job, global_batch=BATCHES, max_gpu_hours=0.1).seconds[1] == pytest.approx(0.1 * 3600 / 8)


def test_a_table_that_is_resumed_is_planned_from_its_trials(job: Path) -> None:
    oppa.profile(job, global_batch="64", exhaustive=True, table="t", trials=2)
    every, rest = (oppa.plan_profile(job, global_batch="64", exhaustive=True, table=table) for table in (None, "t"))
    assert rest.resumed is not None and rest.resumed.trials == 2 and rest.trials[1] == every.trials[1] - 2
    assert rest.first != every.first and rest.to_dict()["table"] == {"folder": "t", "trials": 2, "ended": False}
