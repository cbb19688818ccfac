"""GPU-hours and money as a user meets them: in limits, in results, and in errors."""

import json
import signal

import pytest

from oppa import catalog
from tests.ending import ending

JOB = catalog.root() / "runners" / "simulated" / "jobs" / "bert.toml"
PRICE = ("--set", "limits.price_per_gpu_hour=2.5", "--set", "limits.currency=EUR")


def test_a_search_stays_within_its_gpu_hours_and_reports_them(oppa) -> None:
    tune = ("tune", JOB, "--designer", "random", "--study", "s", *PRICE, "--json")
    found = json.loads(oppa(*tune, "--max-gpu-hours", "0.6").stdout)
    spent, trials = found["spent"], [*found["trials"], *found["verification"], *found["default_trials"]]
    assert found["ended"] == "the budget of 0.6 GPU-hours is spent"
    assert 0.3 < spent["gpu_hours"] <= 0.6 == spent["limit"] and (spent["cost"], spent["currency"]) == (2.5 * spent["gpu_hours"], "EUR")
    assert sum(trial["seconds"] for trial in trials) * 8 / 3600 == pytest.approx(spent["gpu_hours"])
    assert spent["startup_gpu_hours"] > 0 < spent["steps_gpu_hours"] and spent["idle_gpu_hours"] == 0
    said = oppa("show", "s").stdout
    assert "of 0.6 GPU-hours" in said and "EUR" in said and "start-up" in said
    more = json.loads(oppa(*tune, "--max-gpu-hours", "1.5").stdout)
    assert len(more["trials"]) > len(found["trials"]) and more["spent"]["gpu_hours"] <= 1.5
    assert more["spent"]["limit"] == 1.5 and "of 1.5 GPU-hours" in oppa("show", "s").stdout


@pytest.mark.slow
def test_a_search_ends_when_a_trial_does_not_pay_for_the_run_and_goes_on_without_one(oppa) -> None:
    tune = ("tune", JOB, "--trials", "8", "--study", "s", "--json")
    found = json.loads(oppa(*tune, "--set", "limits.run_length=30 min").stdout)
    assert found["ended"].startswith("a further trial takes ") and len(found["trials"]) < 8
    assert found["break_even"]["run_s"] == 1800
    assert len(json.loads(oppa(*tune).stdout)["trials"]) == 8


def test_a_study_without_a_limit_reports_hours_and_no_money(oppa, measured) -> None:
    spent = json.loads(oppa("show", measured, "--json").stdout)["spent"]
    assert (spent["cost"], spent["currency"], spent["limit"]) == (None, None, None)
    assert spent["gpu_hours"] == pytest.approx(14 * 2 / 3600)  # fourteen trials of a second on two devices
    assert "0.00778 device-hours" in oppa("show", measured).stdout


def test_the_report_divides_the_cost_by_use(oppa, measured) -> None:
    oppa("report", measured)
    page = (oppa.folder / measured / "report.html").read_text()
    assert "Cost of the search" in page and "device-hours" in page and "start-up" in page


@pytest.mark.slow
def test_a_plan_of_a_resumed_study_is_about_its_rest(oppa) -> None:
    tune = ("tune", JOB, "--study", "s")
    oppa(*tune, "--trials", "3")
    plan = json.loads(oppa(*tune, "--trials", "5", "--dry-run", "--json").stdout)
    tried = [trial["configuration"] for trial in json.loads(oppa("show", "s", "--json").stdout)["trials"]]
    assert plan["study"] == {"folder": "s", "trials": 3, "ended": False} and plan["expected"]["trials"] == 2
    assert len(tried) == 3 and plan["first"] not in tried
    ended = oppa(*tune, "--trials", "3", "--dry-run").stdout
    assert "s, 3 search trials done; its search has ended" in ended and "cost" not in ended
    other = oppa(*tune, "--dry-run", "--set", "batch.global_batch=128", code=2).stderr
    assert "`s` is the study of another problem: `global_batch` is 256 there, and 128 here" in other
    assert "`job.toml` is a file, not a folder" in oppa("tune", JOB, "--study", "job.toml", "--dry-run", code=2).stderr


def test_a_plan_states_that_nothing_is_predicted_to_fit(oppa) -> None:
    plan = ("tune", JOB, "--dry-run", "--set", "cluster.memory_limit=10MiB")
    expected = json.loads(oppa(*plan, "--json").stdout)["expected"]
    assert expected["configurations_fitting"] == 0 and expected["least_memory_bytes"] > 10 << 20
    shown = oppa(*plan).stdout
    assert "fits   no configuration is predicted to fit: the least needs" in shown and "pays" not in shown


@pytest.mark.parametrize(("precision", "is_said"), [("bf16", False), ("fp32", True)])
def test_a_plan_does_not_state_that_nothing_fits_if_less_memory_is_needed_than_predicted(precision, is_said, oppa) -> None:
    (oppa.folder / "c.yaml").write_text(f"batch_size: 2\ngradient_accumulation_steps: 4\ndtype: {precision}\n")
    model = "layers=32,hidden=4096,heads=32,ffn=14336,vocab=128256,seq_len=4096"
    line = ["tune", "run", "--nproc_per_node", "1", "full_finetune_single_device", "--config", "c.yaml"]
    shown = oppa("tune", "--dry-run", "--set", "cluster.device=H100", "--model", model, "--", *line).stdout
    assert ("no configuration is predicted to fit" in shown) is is_said and ("cost  " in shown) is not is_said
    assert "speed" not in shown


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("--max-gpu-hours", "0"), "`max_gpu_hours = 0` is not a positive number", "more than 0"),
        (("--max-gpu-hours", "-3"), "`max_gpu_hours = -3` is not a positive number", "more than 0"),
        (("--max-gpu-hours", "nan"), "`max_gpu_hours = nan` is not a positive number", "more than 0"),
        (("--max-gpu-hours", "1e-4"), "`max_gpu_hours = 0.0001` lasts 45 ms on 8 devices", "20 trials of one minute take 2.67 GPU-hours"),
        (("--set", "limits.currency=EUR"), '`currency = "EUR"` has no effect without a price', "price_per_gpu_hour"),
        (("--parallel", "2"), "no option `--parallel` any more", "--set launcher.parallel=2"),
    ],
)
def test_wrong_money_is_named_and_leaves_nothing_behind(oppa, words, message, hint) -> None:
    said = oppa("tune", JOB, *words, code=2).stderr
    assert message in said and hint in said.partition("hint")[2] and not (oppa.folder / "studies").exists()


def test_a_limit_that_no_trial_survives_is_named(oppa) -> None:
    run = oppa("tune", JOB, "--designer", "random", "--study", "s", "--max-gpu-hours", "0.04", "--json", code=1)
    assert "no trial ran to its end: the budget of 0.04 GPU-hours is spent" in run.stderr and "raise `max_gpu_hours`" in run.stderr
    found = json.loads(run.stdout)
    assert found["best"] is None and found["break_even"] is None and 0 < found["spent"]["gpu_hours"] <= 0.04


@pytest.mark.slow
def test_real_trials_stay_within_their_hours(oppa) -> None:
    limit = 60 / 3600 * 2  # a minute on two devices, start-ups included
    found = json.loads(oppa("tune", "job.toml", "--designer", "random", "--max-gpu-hours", limit, "--json").stdout)
    assert found["spent"]["gpu_hours"] <= limit and found["best"]


def test_a_dry_run_states_the_cost_and_from_which_run_the_search_pays(oppa) -> None:
    dry = ("tune", JOB, "--dry-run", "--designer", "random", *PRICE)
    expected = json.loads(oppa(*dry, "--json", "--set", "limits.run_length=14 d").stdout)["expected"]
    assert expected["search_gpu_hours"] > 0 and expected["search_cost"] == pytest.approx(2.5 * expected["search_gpu_hours"])
    assert expected["speed_up"] > 1 and expected["run_s"] == 14 * 86400 and expected["net_s"] > 0
    said = oppa(*dry, "--set", "limits.run_length=5 min")
    assert "by the prior" in said.stdout and "for runs longer than" in said.stdout and "loses" in said.stdout
    assert "the search does not pay: a run of 5 min 00 s is too short" in said.stderr


def test_a_result_states_its_break_even(oppa, measured) -> None:
    found = json.loads(oppa("show", measured, "--json").stdout)
    pays, gain = found["break_even"], found["gain"]
    assert pays["search_s"] == 14.0 and pays["speed_up"] == gain
    assert pays["pays_after_s"] == pytest.approx(14 / (1 - 1 / gain)) and pays["net_s"] is None
    assert "for runs longer than" in oppa("show", measured).stdout
    oppa("report", measured)
    assert "The search pays for runs longer than" in (oppa.folder / measured / "report.html").read_text()


def test_a_resumed_search_repeats_no_warning_about_its_expected_cost(oppa) -> None:
    tune = ("tune", JOB, "--designer", "random", "--study", "s", *PRICE, "--set", "limits.run_length=5 min")
    first, second = oppa(*tune, "--trials", 1), oppa(*tune, "--trials", 2)
    assert "the search does not pay" in first.stderr and "the search does not pay" not in second.stderr


def test_a_profile_obeys_the_gpu_hours_of_its_job(oppa) -> None:
    text = (oppa.folder / "job.toml").read_text().replace("[limits]", "[limits]\nmax_gpu_hours = 1e-6")
    (oppa.folder / "limited.toml").write_text(text)
    said = oppa("profile", "limited.toml", "--global-batch", "16", "--table", "T", code=2).stderr
    assert "`max_gpu_hours = 1e-06` lasts" in said and not (oppa.folder / "T").exists()


def test_a_search_states_its_plan_before_its_first_trial(oppa) -> None:
    said = oppa("tune", JOB, "--designer", "random", "--trials", 2, *PRICE, "--set", "limits.repeats=3").stderr
    assert said.index("over the default configuration, by the prior") < said.index("best so far")


@pytest.mark.slow
def test_a_killed_tuner_s_trial_counts_when_the_study_is_resumed(oppa) -> None:
    limit = 40 / 3600 * 2
    tune = ("tune", "job.toml", "--designer", "random", "--study", "s", "--trials", 4, "--max-gpu-hours", str(limit))
    with ending(oppa.start(*tune)) as tuner:
        assert any(line.split()[:1] == ["2"] for line in tuner.stderr)  # two trials have ended
        tuner.send_signal(signal.SIGKILL)
        tuner.communicate()
    before = json.loads(oppa("show", "s", "--json").stdout)["spent"]["gpu_hours"]
    found = json.loads(oppa(*tune, "--json").stdout)
    assert 0 < before < found["spent"]["gpu_hours"] <= limit and found["best"]
