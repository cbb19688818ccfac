"""A loop measures its gradients only if the user gives what measures them."""

import pytest
from oppa_client.loop.statistics import MeasuredSteps
from oppa_client.plan import Terms
from oppa_client.run_files import ContractError

PLAN = Terms.fixed(8, 2, 4).at(0, 0, None)


class Recorder:
    """Records the calls of a loop."""

    noise_scale = None

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *arguments, **named: self.calls.append((name, *arguments, *named.values())) or {"name": name}


def test_without_statistics_nothing_is_measured():
    measured = MeasuredSteps(None, {"any": "state"}, fp16=True)
    assert measured.begin(PLAN, 1) is PLAN
    measured.end(PLAN, [2, 2, 2, 2])
    assert measured.report() is None and measured.to_dict() is None and not measured.is_measuring
    measured.close()


def test_no_step_waits_for_its_report_and_labels_count_as_tokens():
    recorder = Recorder()
    measured = MeasuredSteps(recorder)
    measured.begin(PLAN, 1)
    measured.end(PLAN, [2, 2], [7, 0], 16.0)
    assert measured.report() == {"name": "report"}
    measured.close()
    assert recorder.calls == [("begin", PLAN, 1), ("step", [7, 1], False), ("report", 2.0), ("close",)]


def test_the_plan_of_a_measured_step_is_that_of_the_statistics_if_they_return_one():
    class Silent:
        def begin(self, plan, replicas):
            """Choose nothing, as an object of a user's own may."""

    class InTwo:
        def begin(self, plan, replicas):
            return plan.in_two(replicas)

    single = Terms.fixed(8, 8, 1).at(0, 0, None)
    assert MeasuredSteps(Silent()).begin(single, 1) is single
    assert MeasuredSteps(InTwo()).begin(single, 1).micro_batch == 4 and MeasuredSteps(InTwo()).begin(single, 2) is single


def test_gradients_under_a_loss_scale_that_changes_are_not_measured():
    with pytest.raises(ContractError, match="fp16"):
        MeasuredSteps(Recorder(), fp16=True)


def test_the_learning_rate_of_a_fixed_batch_is_the_one_that_was_chosen():
    plan = Terms.fixed(8, 2, 4).at(5, 40, 44)
    assert (plan.learning_rate_factor, plan.samples, plan.number) == (1.0, range(40, 44), 1)
