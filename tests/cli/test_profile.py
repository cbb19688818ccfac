"""`oppa profile` on a small simulated job, as a user has it."""

import json
import signal

import pytest

from oppa.table import Table
from tests.profiled_job import JOB

PROFILE = ("profile", "job.toml", "--global-batch", "64..256", "--table", "T")


@pytest.fixture
def oppa(oppa):
    (oppa.folder / "job.toml").write_text(JOB.format(limit="12 GiB"))
    return oppa


def found(oppa, *more: str, code: int = 0) -> dict:
    return json.loads(oppa(*PROFILE, "--json", *more, code=code).stdout)


def test_a_dry_run_prints_its_plan_and_starts_nothing(oppa) -> None:
    planned = found(oppa, "--dry-run")
    assert [each["global_batch"] for each in planned["batches"]] == [64, 128, 256] and planned["trials"][0] == 3
    printed = oppa(*PROFILE, "--dry-run", "--trials", 5).stdout
    assert "budget 5 trials" in printed and "3 to 5 trials, each with all its steps" in printed and "predicted to fit" in printed
    assert not (oppa.folder / "T").exists()


@pytest.mark.slow
def test_active_and_exhaustive_agree(oppa) -> None:
    active, exhaustive = found(oppa), found(oppa, "--exhaustive", "--table", "E")
    assert (active["method"], exhaustive["method"]) == ("active", "exhaustive")
    assert active["complete"] and exhaustive["complete"] and active["expected_loss"] <= 0.01 and exhaustive["expected_loss"] is None
    assert active["seconds"] < exhaustive["seconds"] and active["trials"] < exhaustive["trials"]
    assert exhaustive["trials"] + exhaustive["pruned"] == exhaustive["candidates"] == active["candidates"]
    pairs = list(zip(active["fastest"], exhaustive["fastest"], strict=True))
    assert [ours["global_batch"] for ours, _ in pairs] == [64, 128, 256]
    for ours, theirs in pairs:
        assert ours["samples_per_s"] == pytest.approx(theirs["samples_per_s"], rel=0.05)


@pytest.mark.slow
def test_a_profile_goes_on_where_its_budget_ended(oppa) -> None:
    first = found(oppa, "--trials", "3")
    assert not first["complete"] and first["trials"] == 3 and "the budget of 3 trials" in first["ended"]
    assert not Table.read(oppa.folder / "T").origin.complete
    second = found(oppa)
    assert second["complete"] and second["trials"] > 3
    ids = [id for row in Table.read(oppa.folder / "T").rows for id in row.trials]
    assert len(set(ids)) == len(ids) and set(ids) <= set(range(1, second["trials"] + 1))
    assert found(oppa)["trials"] - second["trials"] <= 2  # fitted anew, it is as sure but for a little


@pytest.mark.slow
def test_the_fastest_at_each_batch_is_reported(oppa) -> None:
    said = oppa(*PROFILE, "--trials", "2").stderr
    assert "batch 64 to 256 × 256 tokens" in said and "B64 dp" in said and "fastest at this batch" in said
    assert "the budget of 2 trials is spent" in said and "trials of all configurations would take about" in said
    assert "\x1b" not in said
    assert "dp8" in oppa("show", "T").stdout


@pytest.mark.slow
def test_an_interrupted_profile_leaves_a_table_and_says_how_to_go_on(oppa) -> None:
    process = oppa.start(*PROFILE, "--exhaustive")
    for line in process.stderr:
        if "fastest at this batch" in line:
            process.send_signal(signal.SIGINT)
            break
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Continue with" in rest and "oppa profile job.toml --global-batch 64..256 --table T --exhaustive" in rest
    assert found(oppa, "--exhaustive")["complete"]
    trials = {id for row in Table.read(oppa.folder / "T").rows for id in row.trials}
    assert len(trials) == len(Table.read(oppa.folder / "T").rows)


@pytest.mark.slow
def test_where_nothing_fits_there_is_no_table(oppa) -> None:
    (oppa.folder / "job.toml").write_text(JOB.format(limit="1 GiB"))
    run = oppa(*PROFILE, code=1)
    assert "none of the" in run.stderr and "out of memory" in run.stderr
    assert not (oppa.folder / "T" / "table.csv").exists()


@pytest.mark.slow
def test_the_table_of_other_batches_is_not_gone_on_with(oppa) -> None:
    found(oppa, "--trials", "1")
    run = oppa("profile", "job.toml", "--global-batch", "64..128", "--table", "T", code=2)
    assert "is the study of another problem" in run.stderr and "another folder with `--table`" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--global-batch", "many", "--table", "T"), "`many` is not a whole number"),
        (("--global-batch", "128..16", "--table", "T"), "is a descending range"),
        (("--global-batch", "0..16", "--table", "T"), "needs at least one sequence"),
        (("--global-batch", "64..100", "--table", "T"), "at a global batch of 100"),
        (("--global-batch", "64..128", "--table", "T", "--loss", "1"), "`loss = 1` is not a share"),
        (("--global-batch", "64..128", "--table", "T", "--set", "limits.wall_time=soon"), "`soon` is not a duration"),
    ],
)
def test_what_cannot_be_meant_is_named_and_nothing_is_begun(arguments, message, oppa) -> None:
    run = oppa("profile", "job.toml", *arguments, code=2)
    assert message in run.stderr and "hint" in run.stderr and "Traceback" not in run.stderr
    assert not (oppa.folder / "T").exists()


@pytest.mark.slow
def test_without_a_folder_each_profile_has_a_new_table_which_is_printed(oppa) -> None:
    for number in ("001", "002"):
        done = oppa("profile", "job.toml", "--global-batch", "64", "--trials", "2", "--json")
        folder = json.loads(done.stdout)["table"]
        assert folder == f"tables/job-{number}" and f"table   {folder}\n" in done.stderr
        assert Table.read(oppa.folder / folder).rows
