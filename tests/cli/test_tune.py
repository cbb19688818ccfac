"""`oppa tune` as a user meets it."""

import json
import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from oppa.study import Study
from oppa.tuning.session import new_folder
from tests.cli.conftest import JOB
from tests.command_line import Oppa
from tests.control.services import until
from tests.ending import ending
from tests.sampling import nightly

RANDOM = ("--designer", "random")


def tune(oppa, *arguments, code=0):
    return oppa("tune", "job.toml", *RANDOM, *arguments, code=code)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A folder with a finished study `s`, and the JSON that the command printed; nobody writes there."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "job.toml").write_text(JOB)
    return folder, json.loads(tune(Oppa(folder), "--study", "s", "--json", "--seed", 3).stdout)


@pytest.mark.slow
def test_the_json_has_everything_that_was_promised(tuned) -> None:
    _, result = tuned
    best, default = result["best"], result["default"]
    assert best["steps_per_s"] >= default["steps_per_s"]
    assert best["configuration"]["micro_batch"] >= default["configuration"]["micro_batch"] == 1
    assert len(result["trials"]) == 6 and len(result["verification"]) in (3, 6, 9)  # repeats of the winner, the second, the default
    keys = "configuration outcome cause steps steps_per_s stddev memory_bytes predicted_steps_per_s predicted_log_stddev seconds"
    assert all(set(keys.split()) <= set(trial) for trial in result["trials"] + result["verification"])
    if result["gain_interval"]:
        low, high = result["gain_interval"]
        assert low <= result["gain"] <= high


@pytest.mark.slow
def test_the_winner_is_handed_over_with_a_script(tuned) -> None:
    folder, result = tuned
    assert json.loads((folder / "s" / "best" / "configuration.json").read_text()) == result["best"]["configuration"]
    assert (folder / "s" / "best" / "run.sh").stat().st_mode & 0o111


@pytest.mark.slow
def test_a_finished_study_is_not_run_again_and_goes_on_with_a_larger_budget(tuned, oppa) -> None:
    shutil.copytree(tuned[0] / "s", oppa.folder / "s")
    before = json.loads(oppa("show", "s", "--json").stdout)
    again = json.loads(tune(oppa, "--study", "s", "--json").stdout)
    assert again["trials"] == before["trials"] and again["verification"] == before["verification"]
    more = json.loads(tune(oppa, "--study", "s", "--trials", 7, "--json").stdout)
    assert more["trials"][:6] == before["trials"] and len(more["trials"]) == 7


@pytest.mark.slow
def test_a_file_in_place_of_the_folder_of_the_winner_is_named(tuned, oppa) -> None:
    folder, _ = tuned
    shutil.copytree(folder / "s", oppa.folder / "copy")
    shutil.rmtree(oppa.folder / "copy" / "best")
    (oppa.folder / "copy" / "best").touch()
    assert "`copy/best` cannot be used: File exists" in tune(oppa, "--study", "copy", code=2).stderr


@pytest.mark.slow
def test_a_second_tune_starts_a_new_study(oppa) -> None:
    for _ in range(2):
        tune(oppa, "--trials", 1)
    assert sorted(path.name for path in (oppa.folder / "studies").iterdir()) == ["job-001", "job-002"]


def test_tuners_that_start_at_once_get_a_folder_each(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor() as pool:
        made = set(pool.map(new_folder, ["job"] * 20, ["studies"] * 20))
    assert {path.name for path in made} == {f"job-{number:03d}" for number in range(1, 21)}


@pytest.mark.slow
@pytest.mark.parametrize("number", [*nightly(signal.SIGINT), signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_study_goes_on_and_loses_at_most_one_trial(oppa, number) -> None:
    with ending(oppa.start("tune", "job.toml", *RANDOM, "--study", "s")) as tuner:
        assert any(line.split()[:1] == ["2"] for line in tuner.stderr)  # two trials have ended
        until(lambda: any((oppa.folder / "s" / "trials").glob("0003_*/measurements.jsonl")), timeout_s=60)
        tuner.send_signal(number)
        said = tuner.communicate()[1]
    assert tuner.returncode == (-9 if number == signal.SIGKILL else 130)
    assert number == signal.SIGKILL or "--study s" in said
    with Study(oppa.folder / "s") as study:
        done = [trial.id for trial in study.trials() if trial.outcome != "interrupted"]
    result = json.loads(tune(oppa, "--study", "s", "--json").stdout)
    assert done == [1, 2] or done == [1, 2, 3]
    assert len([trial for trial in result["trials"] if trial["outcome"] != "interrupted"]) == 6
    assert len(result["trials"]) <= 7


@pytest.mark.slow
def test_two_tuners_share_one_study(oppa) -> None:
    arguments = ("tune", "job.toml", *RANDOM, "--study", "s", "--trials", 6)
    with ending(oppa.start(*arguments)) as one, ending(oppa.start(*arguments)) as two:
        for tuner in (one, two):
            said = tuner.communicate()[1]
            assert tuner.returncode == 0, said
    result = json.loads(oppa("show", "s", "--json").stdout)
    tried = [json.dumps(trial["configuration"]) for trial in result["trials"]]
    assert len(tried) == len(set(tried)) == 6


@pytest.mark.slow
def test_when_nothing_fits_it_says_which_constraint_binds(oppa) -> None:
    job = oppa.folder / "job.toml"
    job.write_text(job.read_text().replace("100 MiB", "1 MiB"))
    said = tune(oppa, code=1).stderr
    assert re.search(r"none of the (1[0-2]|[6-9]) trials could run: \1 out of memory", said)  # those that looked for a default included
    assert "raise the memory limit of 1 MiB" in said


@pytest.mark.slow
def test_a_study_of_another_problem_is_refused_and_stays_as_it_is(oppa) -> None:
    tune(oppa, "--study", "s", "--trials", 2)
    job = oppa.folder / "job.toml"
    job.write_text(job.read_text().replace("global_batch = 16", "global_batch = 8"))
    assert "another problem" in tune(oppa, "--study", "s", code=2).stderr
    assert len(json.loads(oppa("show", "s", "--json").stdout)["trials"]) == 2


def test_bad_input_is_an_error_with_a_hint_and_leaves_nothing_behind(oppa) -> None:
    for arguments, words in (
        (("tune", "nothing.toml"), "nothing.toml"),
        (("tune", "job.toml", "--designer", "vanila-bo"), "did you mean `vanilla-bo`"),
        (("tune", "job.toml", "--set", "limits.wall_time=10 parsecs"), "10 parsecs"),
        (("tune", "job.toml", "--set", "runner.name=torhc"), "did you mean `torch`"),
    ):
        said = oppa(*arguments, code=2).stderr
        assert words in said and "Traceback" not in said
    assert not (oppa.folder / "studies").exists()
