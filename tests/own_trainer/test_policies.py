"""Every policy for own trainers acts on one, and the user's bounds hold under it."""

import pytest

from oppa.control.training_session.callback import RunCallback
from oppa.training.run import ledger
from tests.own_trainer.own_runs import OwnRun

pytestmark = pytest.mark.slow

SPEEDS = {(8, "none"): 100.0, (16, "none"): 95.0, (32, "none"): 90.0}
"""Steps per second of a table in which larger batches pay, if gradients are noisy."""
FURTHER = 40
"""Steps after the last expected batch in which a policy would decide on another one."""


class Until(RunCallback):
    """Stops a run some steps after a line of its ledger has a value."""

    def __init__(self, own: OwnRun, key: str, value: object) -> None:
        self._own, self._key, self._value, self._left, self._tail = own, key, value, FURTHER, None

    def stop_requested(self) -> bool:
        if self._tail is None and self._own.run.exists():
            self._tail = ledger.Tail(self._own.run)
        for line in self._tail.new() if self._tail else ():
            self._left -= line.get(self._key) == self._value or (self._left < FURTHER and line["event"] == ledger.STEP)
        return self._left <= 0


def trained(folder, policy, *, noise, begin=8, until=("global_batch", 32), train=()):
    """Train under a policy until some steps after a line of the ledger, and return the run with the batches of its steps in their order."""
    own = OwnRun(folder, "--noise", str(noise), samples=20_000, train=train)
    table = own.table(folder / "t", SPEEDS)
    result = own.train(f"global_batch={begin}", table=table, policy=policy, callback=Until(own, *until))
    assert own.samples() == list(range(ledger.require_whole(result.lines))), result.outcome.last.cause
    return own, list(dict.fromkeys(line["global_batch"] for line in own.events(ledger.STEP)))


@pytest.mark.parametrize("policy", ["goodput", "critical-batch", "norm-test", "stagewise", "static"])
def test_a_policy_changes_the_batch_of_an_own_trainer(tmp_path, policy):
    batches = [8] if policy == "static" else [8, 16, 32]
    assert trained(tmp_path, policy, noise=5000, until=("global_batch", batches[-1]))[1] == batches


def test_a_batch_below_the_least_one_is_not_chosen(tmp_path):
    assert trained(tmp_path / "free", "critical-batch", noise=1, begin=32, until=("global_batch", 8))[1] == [32, 8]
    until = ("global_batch", 16)
    assert trained(tmp_path / "bound", "critical-batch", noise=1, begin=32, until=until, train=["least_batch=16"])[1] == [32, 16]


def test_changes_beyond_those_of_an_hour_are_held_back(tmp_path):
    own, batches = trained(tmp_path, "goodput", noise=5000, until=("event", "held_back"), train=["changes_per_hour=1"])
    assert batches == [8, 16]
    assert {line["failure"] for line in own.events("held_back")} == {"`changes_per_hour = 1` were made within the last hour"}


@pytest.mark.parametrize("policy", ["goodput", "critical-batch", "norm-test", "stagewise"])
def test_a_trainer_whose_batch_only_grows_is_never_asked_for_a_smaller_one(tmp_path, policy):
    own = OwnRun(tmp_path, "--noise", "1", "--batch", "up", "--no-restart", samples=6400)
    result = own.train("global_batch=32", table=own.table(tmp_path / "t", SPEEDS), policy=policy)
    assert ledger.require_whole(result.lines) == 6400
    assert {line["global_batch"] for line in own.events(ledger.STEP)} == {32}
    assert not own.events("refused")
