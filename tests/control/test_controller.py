"""A job under a controller, played on a clock of its own."""

import dataclasses
import functools
import math
from collections.abc import Callable

import pytest

from oppa.control.controller import PROOF, Controller
from oppa.control.decision import DecisionKind, Limit
from oppa.control.policies.critical_batch import CriticalBatchPolicy
from oppa.control.policies.goodput import GoodputPolicy
from oppa.control.policies.norm_test import NormTestPolicy
from oppa.control.policies.proportional import ProportionalPolicy
from oppa.control.policies.stagewise import StagewisePolicy
from oppa.control.policies.static import StaticPolicy
from oppa.control.segment import Segment
from oppa.control.throughput_index import ThroughputIndex
from oppa.problem.configuration import Configuration
from oppa.protocol.messages import Changed, StepTaken
from oppa.table.goodput import goodput
from oppa.table.rows import ParallelStrategy
from oppa.training.run.step_times import WARM_UP
from tests.control.conftest import DATA, PIPELINE, at, row, step_time_s

CHANGE_S = 2.0


@dataclasses.dataclass
class Job:
    """Does what its controller says, if it can."""

    controller: Controller
    configuration: Configuration
    noise_scale: float = 100.0
    health: str = "healthy"
    slow: dict = dataclasses.field(default_factory=dict)
    """Factor by which each configuration is slower than in the table."""
    unbuildable: frozenset = frozenset()
    loss: Callable = lambda job: 3.0
    loss_every: int = 1
    """Steps from one that reports its loss to the next; the steps between report none."""
    ratio: Callable = lambda step: None
    steps: int = 0
    samples: int = 0
    elapsed_s: float = 0.0
    decisions: list = dataclasses.field(default_factory=list)

    def run(self, steps: int) -> "Job":
        for _ in range(steps):
            self._step()
        return self

    def _step(self) -> None:
        seconds = step_time_s(self.configuration) * self.slow.get(self.configuration, 1.0)
        self.elapsed_s += seconds
        self.samples += self.configuration.global_batch
        seen = StepTaken(
            number=self.steps + 1,
            step=self.steps,
            samples=self.samples,
            configuration=self.configuration,
            step_time_s=seconds,
            elapsed_s=self.elapsed_s,
            noise_scale=self.noise_scale,
            health=self.health,
            variance_ratio=self.ratio(self.steps),
            learning_rate=1e-3,
            **({} if self.steps % self.loss_every else {"loss": self.loss(self)}),
        )
        self.steps += 1
        if decision := self.controller.step(seen):
            self.decisions.append((self.steps, decision))
            if decision.command != DecisionKind.NO_OP:
                self._change(decision.configuration)

    def _change(self, wanted) -> None:
        seconds = 0.0 if ParallelStrategy.of(wanted) == ParallelStrategy.of(self.configuration) else CHANGE_S
        self.elapsed_s += seconds
        failure = "out of memory" if wanted in self.unbuildable else ""
        self.controller.changed(Changed(number=1, before=self.configuration, after=wanted, seconds=seconds, failure=failure))
        self.configuration = self.configuration if failure else wanted

    @property
    def commands(self) -> list:
        return [decision.command for _, decision in self.decisions]


@pytest.fixture
def job(table):
    def make(layout=PIPELINE, global_batch=64, policy=GoodputPolicy, **facts) -> Job:
        configuration = Configuration(**layout, global_batch=global_batch, micro_batch=4)
        options = {name: facts.pop(name) for name in ("total_samples", "every") if name in facts}
        return Job(controller=Controller(ThroughputIndex(table), policy, **options), configuration=configuration, **facts)

    return make


def test_a_roll_back_keeps_workers_batches_of_their_own(tmp_path) -> None:
    """Otherwise it would have no answer: nothing shares out their sum evenly."""
    present = Configuration(dp=4, global_batch=67, micro_batch=16)
    found = Controller(None, ProportionalPolicy, total_samples=None)
    decisions = []
    for number in range(60):
        loss = 3.0 if number < 40 else 30.0
        facts = {"noise_scale": None, "health": "no_signal", "loss": loss, "learning_rate": 1e-3, "local_batches": [20, 17, 15, 15]}
        where = {"number": number + 1, "step": number, "samples": 67 * (number + 1), "step_time_s": 0.1, "elapsed_s": number / 10}
        seen = StepTaken(configuration=present, **where, **facts)
        decisions += [each for each in [found.step(seen)] if each]
    (back,) = [each for each in decisions if each.command == DecisionKind.ROLL_BACK]
    assert back.configuration == present and back.local_batches == (20, 17, 15, 15)


@pytest.mark.parametrize(("micro_batch", "every", "seconds"), [(8, 2, 1.0), (4, 2, 1.5), (8, 1, 2.0)])
def test_a_micro_batch_that_is_taken_in_two_says_nothing_of_the_speed_if_others_do(micro_batch, every, seconds) -> None:
    found, present = Controller(None, ProportionalPolicy, total_samples=None), Configuration(dp=1, global_batch=8, micro_batch=micro_batch)
    for number in range(PROOF + WARM_UP):
        measured = {"step_time_s": 2.0, "variance_ratio": 5.0} if number % every == 0 else {"step_time_s": 1.0}
        facts = {"noise_scale": None, "health": "no_signal", "loss": 3.0, "learning_rate": 1e-3, "elapsed_s": float(number), **measured}
        found.step(StepTaken(number=number + 1, step=number, samples=8 * (number + 1), configuration=present, **facts))
    segment = Segment.from_dict(found.snapshot()["segment"])
    assert (segment.steps, segment.counted, segment.proven) == (PROOF + WARM_UP, PROOF, True)
    assert segment.observation.log_steps_per_s == pytest.approx(-math.log(seconds))
    old = {name: value for name, value in segment.to_dict().items() if name != "in_two_s"}
    assert Segment.from_dict(old).counted == len(segment.counted_s), "a snapshot of an earlier version"


def test_a_job_that_comes_back_measures_its_speed_by_all_steps_alike() -> None:
    found, elapsed_s = Controller(None, lambda _: StaticPolicy(), total_samples=None), 0.0
    first, uneven = [2.0] * (2 + WARM_UP), [0.8, 1.2] * 10
    for number, (batch, seconds) in enumerate([*((8, each) for each in first), (16, 1.0), *((8, each) for each in [1.0, *uneven])]):
        elapsed_s, present = elapsed_s + seconds, Configuration(dp=1, global_batch=batch, micro_batch=4)
        times = {"step_time_s": seconds, "elapsed_s": elapsed_s}
        facts = {"noise_scale": None, "health": "no_signal", "loss": 3.0, "learning_rate": 1e-3, **times}
        found.step(StepTaken(number=number + 1, step=number, samples=8 * (number + 1), configuration=present, **facts))
    (seen,) = found.snapshot()["refined_by"]
    expected_s = (2 * 2.0 + PROOF * 1.0) / (2 + PROOF)
    assert math.exp(-seen["log_steps_per_s"]) == pytest.approx(expected_s, rel=0.05)


def test_the_job_arrives_at_the_best_and_stays(job) -> None:
    done = job().run(200)
    assert done.configuration.dp == 2 and done.commands[0] == DecisionKind.RECONFIGURE
    assert set(done.commands[3:]) == {DecisionKind.NO_OP}


def test_a_decision_is_due_every_few_steps(job) -> None:
    assert [step for step, _ in job(policy=lambda _: StaticPolicy(), every=7).run(30).decisions] == [7, 14, 21, 28]


def test_a_growing_noise_scale_lets_the_batch_follow_step_by_step(job) -> None:
    grown = job(global_batch=8, noise_scale=2000.0).run(400)
    batches = [decision.configuration.global_batch for _, decision in grown.decisions if decision.command != DecisionKind.NO_OP]
    assert batches == sorted(batches) and grown.configuration == Configuration(**DATA, global_batch=256, micro_batch=4)
    assert all(after <= 2 * before for before, after in zip([8, *batches], batches, strict=False))


def test_a_step_on_the_way_is_gone_on_from_although_it_is_worse(table_of) -> None:
    worth = {64: 1.0, 128: 0.95, 256: 1.5}
    rates = {batch: float(10 * share / goodput(batch, batch, 100.0)) for batch, share in worth.items()}
    rows = [row(**DATA, global_batch=batch, steps_per_s=rate) for batch, rate in rates.items()]
    slow = {each.configuration: 1 / each.steps_per_s / step_time_s(each.configuration) for each in rows}
    begins = rows[0].configuration
    done = Job(controller=Controller(ThroughputIndex(table_of(rows)), GoodputPolicy), configuration=begins, slow=slow).run(100)
    assert [decision.configuration.global_batch for _, decision in done.decisions[:2]] == [128, 256]
    assert done.configuration.global_batch == 256 and not any("did not pay off" in decision.reason for _, decision in done.decisions)


def test_a_change_that_does_not_deliver_is_undone_and_not_repeated(job) -> None:
    """The table promises more of a layout than training gets from it."""
    promised = job().run(20).configuration
    slow = {Configuration(**DATA, global_batch=batch, micro_batch=4): 5.0 for batch in (8, 16, 32, 64, 128, 256)}
    disappointed = job(slow=slow).run(300)
    assert promised.dp == 2 and disappointed.configuration.pp == 2
    assert disappointed.commands.count(DecisionKind.RECONFIGURE) == 2
    (_, back) = next(each for each in disappointed.decisions if "did not pay off" in each[1].reason)
    assert back.configuration == Configuration(**PIPELINE, global_batch=64, micro_batch=4)


def test_a_change_is_given_time_to_show_what_it_brings(job) -> None:
    slow = {Configuration(**DATA, global_batch=batch, micro_batch=4): 5.0 for batch in (8, 16, 32, 64, 128, 256)}
    changed, undone = [step for step, decision in job(slow=slow).run(100).decisions if decision.command == DecisionKind.RECONFIGURE]
    assert undone - changed == PROOF + WARM_UP


def test_what_cannot_be_built_is_asked_for_once(job) -> None:
    wanted = job().run(10).configuration
    refused = job(unbuildable=frozenset({wanted})).run(200)
    asked = [decision.configuration for _, decision in refused.decisions if decision.command != DecisionKind.NO_OP]
    assert asked.count(wanted) == 1 and refused.configuration != wanted


def test_a_wide_spike_after_a_larger_batch_takes_batch_and_weights_back(job) -> None:
    """The larger batch comes again when as many samples more were seen."""
    unsteady = job(global_batch=32, noise_scale=2000.0, every=30, loss=lambda job: 9.0 if job.configuration.global_batch == 128 else 3.0)
    assert unsteady.run(65).configuration.global_batch == 128
    unsteady.run(200)
    step, back = next(each for each in unsteady.decisions if each[1].command == DecisionKind.ROLL_BACK)
    grown = next(step for step, decision in unsteady.decisions if decision.configuration.global_batch == 128)
    assert (back.before_step, back.configuration.global_batch, back.limits) == (grown, 64, (Limit.SPIKE,))
    later = [decision for at, decision in unsteady.decisions if at > step]
    assert {decision.configuration.global_batch for decision in later[:2]} == {64} and Limit.SPIKE in later[0].limits
    assert any(decision.configuration.global_batch == 128 for decision in later)


def test_a_wide_spike_of_its_own_takes_weights_back_alone(job) -> None:
    risen = job(policy=lambda _: StaticPolicy(), loss=lambda job: 9.0 if 100 <= job.steps < 130 else 3.0).run(200)
    ((_, back),) = [each for each in risen.decisions if each[1].command == DecisionKind.ROLL_BACK]
    assert back.before_step == 100 and back.configuration == risen.configuration


@pytest.mark.parametrize("every", [20, 10**6])
def test_a_loss_that_is_reported_now_and_then_is_no_spike(every, job) -> None:
    grown = job(DATA, 8, noise_scale=1e5, loss_every=every).run(300)
    assert DecisionKind.ROLL_BACK not in grown.commands and grown.configuration.global_batch == 256


@pytest.mark.parametrize("risen", [9.0, None], ids=["high", "not finite"])
def test_a_spike_shows_in_losses_that_are_reported_now_and_then(risen, job) -> None:
    spiked = job(policy=lambda _: StaticPolicy(), loss_every=5, loss=lambda job: risen if job.steps >= 200 else 3.0).run(300)
    assert [(at, each.before_step) for at, each in spiked.decisions if each.command == DecisionKind.ROLL_BACK] == [(246, 200)]


def test_going_back_knows_the_same_bounds(table) -> None:
    """It obeys the limit of growth, and avoids what could not be built and what made the loss rise."""
    policy = GoodputPolicy(ThroughputIndex(table))
    back = dataclasses.replace(at(DATA, 64).configuration, global_batch=128)
    worse = at(PIPELINE, 64)
    assert policy.undo(worse, back).configuration == back
    assert policy.undo(dataclasses.replace(worse, unbuildable=frozenset({back})), back) is None
    assert policy.undo(dataclasses.replace(worse, too_large=128.0), back) is None
    assert policy.undo(at(PIPELINE, 32), back) is None


def test_a_layout_that_was_refused_at_once_says_nothing_of_what_one_takes(job) -> None:
    near, after = job(total_samples=64 * 15), Configuration(**DATA, global_batch=64, micro_batch=4)
    near.controller.changed(Changed(number=1, before=near.configuration, after=after, seconds=60.0, failure="once"))
    near.controller.changed(Changed(number=2, before=near.configuration, after=after, seconds=0.0, failure="refused"))
    assert DecisionKind.RECONFIGURE not in near.run(12).commands


def test_a_step_is_worth_what_it_brought_however_long_it_took(job) -> None:
    """A layout that is five times slower than the table has it is worth a fifth."""
    fast, slow = (
        job(policy=lambda _: StaticPolicy(), slow={Configuration(**PIPELINE, global_batch=64, micro_batch=4): factor}).run(5).controller
        for factor in (1.0, 5.0)
    )
    assert slow.present.goodput == pytest.approx(fast.present.goodput / 5)
    assert slow.worth.actual == pytest.approx(fast.worth.actual) and slow.worth.regret > fast.worth.regret


def test_nothing_is_decided_on_an_unhealthy_estimator(job) -> None:
    sick = job(health="no_signal").run(100)
    assert set(sick.commands) == {DecisionKind.NO_OP} and sick.decisions[0][1].limits == (Limit.UNHEALTHY,)


@pytest.mark.parametrize("policy", [CriticalBatchPolicy, NormTestPolicy, StagewisePolicy])
def test_a_change_of_a_policy_that_compares_no_goodput_states_its_gain(job, policy) -> None:
    facts = {"noise_scale": 2000.0, "ratio": lambda step: 2000.0, "total_samples": 10**6}
    grown, unknown = (job(DATA, 32, policy, **facts, health=health).run(20).decisions for health in ("healthy", "too_few_samples"))
    changes = [decision for _, decision in grown if decision.command != DecisionKind.NO_OP]
    assert changes and all(f"; goodput {each.chosen.goodput / each.current.goodput - 1:+.1%}" in each.reason for each in changes)
    assert not any(decision.chosen or "goodput" in decision.reason for _, decision in unknown)


def test_a_layout_is_not_changed_shortly_before_the_end(job) -> None:
    assert DecisionKind.RECONFIGURE in job(total_samples=64 * 1000).run(20).commands
    near = job(total_samples=64 * 15)
    near.controller.changed(
        Changed(
            number=1, before=near.configuration, after=Configuration(**DATA, global_batch=64, micro_batch=4), seconds=60.0, failure="once"
        )
    )
    assert DecisionKind.RECONFIGURE not in near.run(12).commands


def test_a_job_that_stays_is_worth_what_staying_is_worth(job) -> None:
    worth = job(policy=lambda _: StaticPolicy()).run(50).controller.worth
    assert worth.gain == pytest.approx(0, abs=1e-9) and worth.regret > 0.1


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.14, 5.0])
def test_a_job_that_never_changed_claims_no_gain_whatever_speed_the_table_has(factor, job) -> None:
    began = Configuration(**PIPELINE, global_batch=64, micro_batch=4)
    stayed = job(policy=lambda _: StaticPolicy(), slow={began: factor}).run(60).controller
    assert stayed.worth.gain == pytest.approx(0, abs=1e-12) and stayed.worth.actual > 0
    assert not stayed.to_dict()["changed"] and job().run(60).controller.to_dict()["changed"]


def test_attempts_that_fail_have_cost_something(job) -> None:
    unbuildable = frozenset(Configuration(**DATA, global_batch=batch, micro_batch=4) for batch in (8, 16, 32, 64, 128, 256))
    failed = job(unbuildable=unbuildable, total_samples=64 * 1000).run(20).controller
    assert failed.worth.gain < 0 and not failed.has_changed


def test_decisions_are_worth_something_and_never_more_than_the_ideal(job) -> None:
    worth = job().run(300).controller.worth
    assert worth.gain > 0.2 and 0 <= worth.regret < 0.1


def test_time_spent_on_changes_counts_for_nothing(job, table) -> None:
    free, dear = job(), job()
    dear_change = functools.partial(dear._change)
    dear._change = lambda wanted: (setattr(dear, "elapsed_s", dear.elapsed_s + 100.0), dear_change(wanted))
    assert dear.run(100).controller.worth.gain < free.run(100).controller.worth.gain - 0.1


def test_a_norm_test_is_answered_after_each_step_that_was_measured(job) -> None:
    """A batch that has grown is not waited for; a layout is, until it has shown how fast it is."""
    done = job(layout=DATA, policy=NormTestPolicy, ratio=lambda step: None if step % 3 else 1e6).run(7)
    assert [(step, decision.configuration.global_batch) for step, decision in done.decisions] == [(1, 128), (4, 256), (7, 256)]


def test_stages_begin_where_they_should(job) -> None:
    """2.5% and 5% of 64,000 samples, give or take a batch."""
    done = job(layout=DATA, policy=StagewisePolicy, total_samples=64_000).run(400)
    begun = {
        decision.configuration.global_batch: step for step, decision in reversed(done.decisions) if decision.command != DecisionKind.NO_OP
    }
    assert begun == {128: 25, 256: 25 + -(-1600 // 128)}


def test_a_job_that_cannot_be_tested_gets_the_reason(job) -> None:
    done = job(layout=DATA, policy=NormTestPolicy).run(30)
    assert done.decisions and all(decision.limits == (Limit.UNHEALTHY,) for _, decision in done.decisions)


def test_a_layout_of_the_norm_test_is_given_time(job) -> None:
    done = job(layout=PIPELINE, global_batch=16, policy=NormTestPolicy, ratio=lambda step: 1e6).run(40)
    moved = next(step for step, decision in done.decisions if decision.command == DecisionKind.RECONFIGURE)
    following = next(step for step, decision in done.decisions if step > moved)
    assert following - moved == PROOF + WARM_UP
