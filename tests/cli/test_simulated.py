"""A simulated job is tuned like any other, and takes no device."""

import json

import pytest

from oppa import catalog

JOB = catalog.find("runners", "simulated") / "jobs" / "bert.toml"


@pytest.mark.slow
def test_a_simulated_job_is_tuned_and_resumed(oppa) -> None:
    first = json.loads(oppa("tune", JOB, "--trials", "3", "--study", "s", "--json").stdout)
    again = json.loads(oppa("tune", JOB, "--trials", "5", "--study", "s", "--json").stdout)
    assert again["trials"][:3] == first["trials"] and len(again["trials"]) == 5
    assert (oppa.folder / "s" / "best" / "configuration.json").is_file()
    assert not (oppa.folder / "s" / "best" / "run.sh").exists()  # there is nothing to start


@pytest.mark.slow
def test_its_time_is_the_trials_own(oppa) -> None:
    found = json.loads(oppa("tune", JOB, "--time", "3 min", "--designer", "random", "--study", "s", "--json").stdout)
    searched = [trial["seconds"] for trial in found["trials"]]
    assert sum(searched[:-1]) < 180 <= sum(searched)
