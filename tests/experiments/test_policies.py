"""All policies on one job: what its page says of runs that are made up, which runs it asks for, and what it measures."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from experiments.lib.recorded_page import written_page
from experiments.lib.recorder import Recorder
from experiments.lib.run_trace import COLUMNS, HELD_OUT, HELD_OUT_ACCURACY, RunTrace, time_to_accuracy
from experiments.policies import measured, page, run, variations
from oppa import catalog
from oppa.control.registry import LEARNED, POLICIES
from oppa.errors import InputError
from oppa.problem.job import load_job
from tests.control.conftest import row, table_of  # noqa: F401 - a fixture

SAMPLES = 6400


@pytest.fixture(scope="module")
def table(table_of):  # noqa: F811
    return table_of(row(dp=4, micro_batch=8, global_batch=batch, steps_per_s=100 / batch) for batch in run.BATCHES)


def trace(variant: str, seed: int, *, batch: int = 64, reached: float = 0.5, step_s: float = 0.1) -> RunTrace:
    """Steps of one size and time; four looks at held-out samples, whose accuracy is 0.96 from this share of the run on."""
    steps = np.arange(SAMPLES // batch)
    samples = batch * (steps + 1)
    values = {
        "step": steps,
        "samples": samples,
        "configuration": "dp4_tp1_pp1_z0_mbs8",
        "global_batch": batch,
        "loss": 3 - 2 * samples / SAMPLES,
        "noise_scale": np.nan,
        "step_time_s": step_s,
        "pause_s": 0.0,
        "elapsed_s": step_s * (steps + 1),
    }
    frame = pd.DataFrame(values).astype(COLUMNS)
    looks = np.isin(samples, SAMPLES * np.arange(1, 5) // 4)
    frame[HELD_OUT] = np.where(looks, frame["loss"], np.nan)
    frame[HELD_OUT_ACCURACY] = np.where(looks, np.where(samples >= reached * SAMPLES, 0.96, 0.5), np.nan)
    return RunTrace(variant, seed, frame)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "runs").mkdir()
    for seed in range(3):
        for each in (
            trace("static-64", seed),
            trace("static-128", seed, batch=128, step_s=0.3),
            trace("proportional-64", seed, step_s=0.06),
            trace("rl", seed, reached=0.25, step_s=0.06),
            trace("norm-test", seed, reached=2.0),
        ):
            each.write(tmp_path / "runs")
    (tmp_path / "runs" / "origins.json").write_text(json.dumps({"rl-0": {"command": "oppa train", "date": "2026-01-01"}}))
    return tmp_path


def test_an_accuracy_is_had_at_the_look_that_finds_it(tmp_path) -> None:
    again = RunTrace.read(trace("rl", 0, reached=0.6).write(tmp_path))
    assert time_to_accuracy(again, 0.95) == pytest.approx(7.5) and time_to_accuracy(again, 0.99) == np.inf
    assert again.held_out["accuracy"].tolist() == [0.5, 0.5, 0.96, 0.96]


def test_the_best_batch_stands_for_a_policy_that_has_one(folder) -> None:
    record = page.to_json(page.PolicyResults.read(folder), folder)
    assert record["policies"]["static"] == {
        "variant": "static-64",
        "time_to_target_s": pytest.approx(5.0),
        "steps": 100,
        "final_loss": pytest.approx(1.0),
        "final_accuracy": pytest.approx((0.5 + 3 * 0.96) / 4),
    }
    assert record["policies"]["rl"]["time_to_target_s"] == pytest.approx(1.5) and record["runs"] == 15
    assert record["policies"]["norm-test"]["time_to_target_s"] is None, "it never gets there"
    (section,) = page.sections(folder)
    assert [line[0] for line in section.rows] == ["rl", "proportional-64", "static-64", "static-128", "norm-test"]
    assert [line[3] for line in section.rows] == ["+70%", "+40%", "", "-50%", "never"] and section.rows[-1][1] == "never"
    assert all(len(line) == len(section.columns) for line in section.rows)


def test_the_page_is_made_of_the_records_alone(folder) -> None:
    text = written_page(folder, page.page(folder)).read_text()
    assert "| rl " in text and page.page(folder)[0] == text
    assert all((folder / f"{name}.svg").read_text().startswith("<") for name in ("accuracy", "batches"))


def test_without_records_the_error_states_how_to_make_them(tmp_path) -> None:
    with pytest.raises(InputError, match="no record of a run") as caught:
        page.PolicyResults.read(tmp_path)
    assert "oppa bench policies --run" in caught.value.hint


def test_each_seed_trains_under_every_policy(table, tmp_path, monkeypatch) -> None:
    asked, once = [], []
    monkeypatch.setattr(Recorder, "table", lambda self, batches: table)
    monkeypatch.setattr(Recorder, "once", lambda self, name, made, *words: once.append((name, words)))
    monkeypatch.setattr(Recorder, "train", lambda self, variant, seed, begins, *words: asked.append((variant, seed, begins, words)))
    run.run(tmp_path, tmp_path, range(2), print)
    assert [name for name, _ in once] == ["learn", *run.EXPLORED]
    for seed in range(2):
        own = [variant for variant, at, _, _ in asked if at == seed]
        assert sorted(own) == sorted({*own}) and {"static-64", "proportional-256", "stagewise", "goodput", "rl"} <= {*own}
    assert asked[0][0] != asked[len(asked) // 2][0], "whatever drifts meets all alike"
    named = {words[words.index("--policy") + 1] for _, _, _, words in asked}
    assert named <= {*POLICIES, *LEARNED}
    (begins,) = {begins for variant, _, begins, _ in asked if variant == "rl"}
    assert begins.global_batch == load_job(catalog.root() / run.JOB).global_batch == run.LEARNED_FIRST


def test_each_variation_is_a_job_that_a_policy_is_checked_and_evaluated_on(tmp_path, monkeypatch) -> None:
    asked, once = [], []
    (tmp_path / "examples").mkdir()
    for name in ("digits.toml", "digits.py"):
        shutil.copy(catalog.root() / "examples" / name, tmp_path / "examples")
    monkeypatch.setattr(Recorder, "once", lambda self, name, made, *words: once.append((name, words)))
    monkeypatch.setattr(
        Recorder, "train", lambda self, variant, seed, begins, *words: asked.append((self.job, variant, seed, begins, words))
    )
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(variations.catalog, "root", lambda: tmp_path)
        variations.run(tmp_path / "record", tmp_path / "work", range(2), print)
    assert len(asked) == len(variations.VARIATIONS) * 3 * 2
    explored = [words for name, words in once if "explored" in name]
    assert len(explored) == len(variations.EXPLORED) * len(variations.VARIATIONS)
    assert not any("--eval-run" in words for words in explored), "there is nothing yet"
    assert all(words.count("--eval-run") == len(variations.EXPLORED) for _, variant, _, _, words in asked if variant.endswith(".rl"))
    jobs = {path.stem: load_job(tmp_path / path) for path, *_ in asked if path.stem != "links"}
    assert {name: job.cluster.devices for name, job in jobs.items()} == {
        each.name: each.workers for each in variations.VARIATIONS if not each.hosts
    }
    links = (tmp_path / "work" / "jobs" / "links.toml").read_text()
    assert 'hosts = "allocation"' in links and "cpus_per_device" not in links
    assert jobs["sgd"].training.optimizer == "sgd" and jobs["sgd"].run_options.scaling == "linear" and jobs["deep"].model.layers == 6
    assert len({*map(str, (job.cluster.cpus for job in jobs.values()))}) == 4, "what SGD and the deeper model run on is the example's"
    learned = {words[words.index("--weights") + 1] for _, variant, _, _, words in asked if variant.endswith(".rl")}
    assert {path.rpartition("/")[2] for path in learned} == {
        "rl.safetensors",
        *(f"{name}.safetensors" for name in ("links", *jobs) if name != "deep"),
    }
    for _, _, _, begins, _ in asked:
        values = dict(pair.split("=") for pair in begins.split(","))
        assert run.LEARNED_FIRST % (int(values["dp"]) * int(values["micro_batch"])) == 0


def test_variations_have_a_table_of_their_own(folder) -> None:
    for policy, reached in (("static", 0.5), ("rl", 0.25)):
        trace(f"even.{policy}", 0, reached=reached).write(folder / "runs")
    policies, varied = page.sections(folder)
    assert len(policies.rows) == 5
    assert [line[:2] for line in varied.rows] == [["even workers", "static"], ["", "rl"]] and varied.rows[1][4] == "+50%"


def test_what_is_made_is_not_made_again(tmp_path, monkeypatch) -> None:
    done = []
    monkeypatch.setattr(Recorder, "_oppa", lambda self, words, log: done.append(words) or "oppa train-policy")
    recorder = Recorder(job=run.JOB, folder=tmp_path / "record", work=tmp_path, tell=lambda _: None)
    for _ in range(2):
        recorder.once("learn", tmp_path / "weights", "learn", "job.toml")
        (tmp_path / "weights").touch()
    assert len(done) == 1
    (tmp_path / "weights").unlink()
    recorder.once("learn", tmp_path / "weights", "learn", "job.toml")
    assert len(done) == 2, "what is gone is made again"


def test_what_the_record_holds_is_not_made_again_elsewhere(tmp_path, monkeypatch) -> None:
    done = []
    monkeypatch.setattr(
        Recorder, "_oppa", lambda self, words, log: done.append(words) or (self.folder / "rl").touch() or "oppa train-policy"
    )
    for work in (tmp_path / "here", tmp_path / "there"):
        work.mkdir()
        recorder = Recorder(job=run.JOB, folder=tmp_path, work=work, tell=lambda _: None)
        recorder.once("learn", tmp_path / "rl", "learn", "job.toml")
    assert len(done) == 1


@pytest.mark.slow
def test_the_gradient_of_uneven_workers_is_that_of_one_process() -> None:
    assert 0 < measured.weighted_gradient_error() < 1e-6


@pytest.mark.slow
def test_a_decision_is_measured_from_end_to_end() -> None:
    assert 0 < measured.decision_ms() < 1e3
