"""The rate of the present configuration follows all of its steps, not only the first ones."""

import json
import math

import pytest

from oppa.control.controller import PROOF, Controller
from oppa.control.decision import DecisionKind
from oppa.control.policies.goodput import GoodputPolicy
from oppa.control.policies.static import StaticPolicy
from oppa.control.segment import RECENT
from oppa.control.throughput_index import ThroughputIndex
from oppa.problem.configuration import Configuration
from oppa.protocol.messages import Changed
from tests.control.conftest import row
from tests.control.services import step

IN_TWO = {"step_time_s": 1.4, "variance_ratio": 5.0}


def at(batch: int, **facts) -> dict:
    """Return the facts of a step of one micro-batch, which takes a second unless they differ."""
    return {"configuration": Configuration(dp=1, global_batch=batch, micro_batch=batch), "step_time_s": 1.0, **facts}


def rates(found: Controller) -> dict[int, float]:
    """Return the rates that the table was refined by, in steps per second, by batch."""
    return {each["configuration"]["global_batch"]: math.exp(each["log_steps_per_s"]) for each in found.snapshot()["refined_by"]}


def taken(steps: list[dict], policy_of=lambda _: StaticPolicy(), throughputs=None) -> tuple[Controller, list]:
    """Return a controller that has taken steps, restored after each from a snapshot, and its decisions."""
    found, decisions = Controller(throughputs, policy_of), []
    for number, (before, facts) in enumerate(zip([steps[0], *steps], steps, strict=False), 1):
        if (changed := {"before": before["configuration"], "after": facts["configuration"]})["before"] != changed["after"]:
            found.changed(Changed(number=number, seconds=0.0, **changed))
        decisions.append(found.step(step(number, **facts)))
        earlier, found = found, Controller(throughputs, policy_of)
        found.restore(json.loads(json.dumps(earlier.snapshot())))
    return found, decisions


@pytest.mark.parametrize("first", [{"step_time_s": 1.5}, IN_TWO], ids=["slow", "in two"])
def test_first_steps_that_are_slow_do_not_decide_the_rate_of_a_run(first: dict) -> None:
    found, _ = taken([at(8, **first)] * 32 + [at(8)] * 2 * RECENT)
    assert rates(found) == {8: pytest.approx(1.0)}
    beginning, _ = taken([at(8, **first)] * 20)
    assert rates(beginning) == {8: pytest.approx(1 / first["step_time_s"])}, "until others exist"


def test_a_rate_follows_a_run_that_slows_down() -> None:
    found, _ = taken([at(8)] * 3 * RECENT + [at(8, step_time_s=2.0)] * 2 * RECENT)
    assert rates(found) == {8: pytest.approx(0.5)}


def test_steps_in_two_of_an_earlier_stay_do_not_count_beside_others() -> None:
    found, _ = taken([at(8, **IN_TWO)] * 20 + [at(16)] * 20 + [at(8)] * 2 * PROOF)
    assert rates(found) == {8: pytest.approx(1.0), 16: pytest.approx(1.0)}
    back, _ = taken([at(8)] * 20 + [at(16)] * 20 + [at(8, **IN_TWO)] * 2 * PROOF)
    assert rates(back)[8] == pytest.approx(1.0)


def test_a_change_that_was_judged_by_steps_in_two_is_judged_again_by_others(table_of) -> None:
    """The larger batch keeps its promise in steps in two, and breaks it in all others."""
    throughputs = ThroughputIndex(table_of(row(dp=1, global_batch=batch, micro_batch=batch, steps_per_s=1.0) for batch in (8, 16)))
    slow = [at(16, step_time_s=6.0)] * 30
    _, decisions = taken([at(8)] * 20 + [at(16, **IN_TWO)] * 20 + slow, GoodputPolicy, throughputs)
    undone = [place for place, each in enumerate(decisions) if each and "did not pay off" in each.reason]
    assert undone and undone[0] >= 40 + PROOF - 1 and decisions[undone[0]].command == DecisionKind.SCALE_BS
    assert len(undone) == 1, "the rest of its steps refine the table alone"
