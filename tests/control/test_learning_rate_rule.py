"""A job that states no rule for its learning rate has the optimizer's, and none under a norm test."""

import pytest

from oppa.control.registry import policy_of
from oppa.control.throughput_index import ThroughputIndex
from oppa.control.training_session.options import measured_for
from oppa.problem.problem import Problem
from oppa.problem.study_settings import with_changes
from tests.control.conftest import JOB
from tests.jobs import problem_of

SGD = JOB + 'training = {optimizer = "sgd"}\n'
STATED = JOB + 'train = {scaling = "sqrt"}\n'


@pytest.mark.parametrize("policy", ["norm-test", "norm-test-paper,eta=0.1"])
@pytest.mark.parametrize(("job", "rule"), [(JOB, "none"), (SGD, "none"), (STATED, "sqrt")])
def test_under_a_norm_test_it_follows_by_no_rule_that_is_not_stated(job, rule, policy, table, tmp_path) -> None:
    """Tables 5 to 7 of Lau et al. have it so."""
    problem, made = problem_of(job, tmp_path), policy_of(policy)(ThroughputIndex(table))
    assert measured_for(problem, made).run_options.scaling == rule
    stored = Problem.from_dict(problem.to_dict())
    assert measured_for(stored, made).run_options.scaling == rule
    changed = with_changes(stored, ["train.scaling='linear'"])
    assert measured_for(changed, made).run_options.scaling == "linear"


@pytest.mark.parametrize(("job", "rule"), [(JOB, "sqrt"), (SGD, "linear"), (STATED, "sqrt")])
def test_under_other_policies_the_optimizer_has_the_rule(job, rule, table, tmp_path) -> None:
    policy = policy_of("goodput")(ThroughputIndex(table))
    assert measured_for(problem_of(job, tmp_path), policy).run_options.scaling == rule


def test_what_an_earlier_version_stored_keeps_its_rule(table, tmp_path) -> None:
    """It did not store whether the job states one."""
    values = problem_of(JOB, tmp_path).to_dict()
    del values["recipe"]["usual_scaling"]
    policy = policy_of("norm-test")(ThroughputIndex(table))
    assert measured_for(Problem.from_dict(values), policy).run_options.scaling == "sqrt"
