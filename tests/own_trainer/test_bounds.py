"""The user's bounds hold under every policy, whenever a change takes effect, and after a new start of oppa."""

import contextlib

import pytest

from oppa.control.own_trainer.catch_up import catch_up
from oppa.control.own_trainer.run_book import RunBook
from oppa.control.policies.goodput import GoodputPolicy
from oppa.control.service.address import TOKEN
from oppa.table import Table
from oppa.training.run import ledger
from oppa.training.run.ledger import Ledger
from oppa.training.run.run_folder import ATTEMPTS, RunSpec
from tests.control.services import serving
from tests.own_trainer.own_runs import OwnRun
from tests.own_trainer.until import SPEEDS, Until, trained
from tests.sampling import nightly

NOISY = ("--noise", "5000")
BATCHES, LAYOUTS = {(8, "none"): 100.0, (16, "none"): 100.0}, {(8, "none"): 100.0, (8, "full"): 900.0}
"""Steps per second of tables in which another batch pays, or another layout."""
LEAD, FROZEN = 250, range(1600, 3700)
"""Steps between a request and its effect, so that whatever is requested in the 200 steps before the frozen samples takes effect in them."""


def failures(own: OwnRun) -> set[str]:
    return {line["failure"] for line in own.events("held_back")}


@contextlib.contextmanager
def named_service(own, folder, monkeypatch):
    """A service with a table of three batches, and the words that name it."""
    table = Table.read(own.table(folder / "t", SPEEDS))
    with serving(folder / "service", table, GoodputPolicy) as (service, port):
        monkeypatch.setenv(TOKEN, service.tokens.of_job("my-job"))
        yield f"my-job@127.0.0.1:{port}"


@pytest.mark.slow
@pytest.mark.parametrize(("advise", "batches"), [("false", {8, 16}), ("true", {8})])
def test_a_service_that_the_user_named_proposes_the_best_batch_within_the_bounds(tmp_path, monkeypatch, advise, batches):
    own = OwnRun(tmp_path, *NOISY, samples=20_000, train=["largest_batch=16", f"advise={advise}"])
    with named_service(own, tmp_path, monkeypatch) as named:
        own.train(control=named, callback=Until(own, "global_batch", 16) if advise == "false" else Until(own, "event", "advised"))
    assert {line["global_batch"] for line in own.events(ledger.STEP)} == batches and not own.events("held_back")
    assert {line["after"]["global_batch"] for line in own.events("advised")} == ({16} if advise == "true" else set())


@pytest.mark.slow
def test_a_service_that_disregards_the_bounds_is_held_back(tmp_path, monkeypatch):
    monkeypatch.setattr("oppa.control.service.factory.reachable", lambda policy_of, _reach: policy_of)
    own = OwnRun(tmp_path, *NOISY, samples=20_000, train=["largest_batch=16", "advise=false"])
    with named_service(own, tmp_path, monkeypatch) as named:
        own.train(control=named, callback=Until(own, "event", "held_back"))
    assert {line["global_batch"] for line in own.events(ledger.STEP)} == {8, 16}
    assert failures(own) == {"batch 32 is above `largest_batch = 16`"}


@pytest.mark.slow
def test_changes_before_a_new_start_of_oppa_count(tmp_path):
    own, _ = trained(tmp_path, "goodput", noise=5000, until=("event", ledger.CHANGED), train=["changes_per_hour=1"])
    own.train(table=tmp_path / "t", policy="goodput", callback=Until(own, "event", "held_back"))
    assert {line["global_batch"] for line in own.events(ledger.STEP)} == {8, 16}
    assert failures(own) == {"`changes_per_hour = 1` were made within the last hour"}


@pytest.mark.parametrize(("event", "counts"), [(ledger.CHANGED, True), (ledger.UNDONE, True), (ledger.REFUSED, False)])
def test_changes_count_that_a_later_attempt_has_made_void(tmp_path, event, counts):
    own = OwnRun(tmp_path, train=["changes_per_hour=1"])
    run = RunSpec(uuid="u", problem=own.problem, configuration=own.configuration())
    run.write(own.run)
    with contextlib.closing(Ledger(own.run)) as lines:
        lines.write(event, time=1000.0, step=9, samples=72)
        lines.write(ledger.STARTED, time=1001.0, step=0, samples=0)
    with contextlib.closing(RunBook(own.run, run)) as book:
        catch_up(book)
        assert bool(book.limits.held_back(0, 4599.0)) is counts and not book.limits.held_back(0, 4601.0)


@pytest.mark.slow
@pytest.mark.parametrize("speeds", [BATCHES, *nightly(LAYOUTS)])
def test_a_change_that_a_frozen_phase_overtakes_is_held_back_until_its_end(tmp_path, speeds):
    own = OwnRun(tmp_path, *NOISY, "--lead", str(LEAD), samples=40_000, train=[f"frozen='{FROZEN.start}..{FROZEN.stop}'"])
    until = Until(own, "event", ledger.CHANGED)
    result = own.train("recompute=none", table=own.table(tmp_path / "t", speeds), policy="goodput", callback=until)
    (change,) = own.events(ledger.CHANGED)
    assert change["samples"] >= FROZEN.stop and failures(own) == {"samples 1600 to 3700 are frozen"}
    assert own.samples() == list(range(ledger.require_whole(result.lines))) and not own.events(ledger.UNDONE)


@pytest.mark.slow
def test_ranks_that_start_early_are_dropped_when_a_frozen_phase_begins(tmp_path):
    words = ("--early-start", "--misbehave", "slow-if-early")
    own = OwnRun(tmp_path, *NOISY, *words, samples=40_000, train=["frozen='400..40000'"])
    until = Until(own, "event", "held_back")
    own.train("recompute=none", table=own.table(tmp_path / "t", LAYOUTS), policy="goodput", callback=until)
    assert failures(own) == {"samples 400 to 40000 are frozen"}
    assert not own.events(ledger.CHANGED) and [path.name for path in (own.run / ATTEMPTS).iterdir()] == ["0001"]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["goodput", *nightly("critical-batch")])
def test_a_batch_that_has_grown_is_not_proposed_to_shrink_if_it_can_only_grow(tmp_path, policy):
    own = OwnRun(tmp_path, *NOISY, "--batch", "up", "--no-restart", "--quiet-at", "32", samples=8000)
    speeds = {(8, "none"): 100.0, (16, "none"): 95.0, (32, "none"): 70.0}
    result = own.train("global_batch=8", table=own.table(tmp_path / "t", speeds), policy=policy)
    assert result.finished and {line["global_batch"] for line in own.events(ledger.STEP)} == {8, 16, 32}
    assert not own.events(ledger.REFUSED)
