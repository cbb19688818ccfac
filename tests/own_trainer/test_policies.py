"""Every policy for own trainers acts on one, and the user's bounds hold under it."""

import pytest

from oppa.training.run import ledger
from tests.own_trainer.own_runs import OwnRun
from tests.own_trainer.until import SPEEDS, trained
from tests.sampling import nightly

pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize("policy", ["goodput", "norm-test", *nightly("critical-batch", "stagewise")])
def test_a_trainer_whose_batch_only_grows_is_never_asked_for_a_smaller_one(tmp_path, policy):
    own = OwnRun(tmp_path, "--noise", "1", "--batch", "up", "--no-restart", samples=6400)
    result = own.train("global_batch=32", table=own.table(tmp_path / "t", SPEEDS), policy=policy)
    assert ledger.require_whole(result.lines) == 6400
    assert {line["global_batch"] for line in own.events(ledger.STEP)} == {32}
    assert not own.events("refused")


@pytest.mark.parametrize("loss_every", [20, 10**6])
def test_a_loss_that_is_reported_now_and_then_holds_no_batch_back(tmp_path, loss_every):
    own = OwnRun(tmp_path, "--noise", "5000", "--loss-every", str(loss_every), samples=6400)
    own.train("global_batch=8", table=own.table(tmp_path / "t", SPEEDS), policy="goodput")
    assert not own.events(ledger.NOT_ROLLED_BACK)
    assert {line["loss"] is None for line in own.events(ledger.STEP)} == {True, False}
