"""`oppa train` as a user meets it."""

import contextlib
import dataclasses
import json
import math
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from oppa.cli.views import run_view
from oppa.control.own_trainer import run_book
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.table import Origin, Table, TableRow
from oppa.training.run import ledger
from oppa.training.run.run_folder import RunSpec, checkpoints
from oppa.trials.interruption import Interruption
from oppa.tuning.resolve_configuration import resolve_with_table
from tests.command_line import Oppa
from tests.jobs import TRAIN_JOB
from tests.sampling import nightly

pytestmark = pytest.mark.slow


@pytest.fixture
def train(oppa):
    (oppa.folder / "job.toml").write_text(TRAIN_JOB)

    def train(*arguments, code=0):
        done = oppa("train", "job.toml", *arguments, "--json", code=code)
        return json.loads(done.stdout), done.stderr

    return train


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder in which a job was trained to its end, with what the command printed; nobody writes there."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "job.toml").write_text(TRAIN_JOB)
    done = Oppa(folder)("train", "job.toml", "--json")
    return folder, json.loads(done.stdout), done.stderr


@pytest.fixture
def finished(trained, train, oppa):
    """A copy of that run, as `r`."""
    folder, result, _ = trained
    shutil.copytree(folder / result["run"], oppa.folder / "r")


def until(what, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def steps(run):
    return [line for line in ledger.standing(ledger.read(run)) if line["event"] == ledger.STEP]


def test_a_job_is_trained_to_its_end(trained) -> None:
    folder, result, said = trained
    assert result["ending"] == "finished" and (result["steps"], result["samples"], result["attempts"]) == (12, 96, 1)
    assert result["run"] == "runs/job-001" and result["checkpoint"] == "runs/job-001/checkpoints/step-12"
    assert result["configuration"] == "dp2_tp1_pp1_z0_mbs1", "the default"
    assert "96, each once and in order" in said and "trained to its end" in said
    assert steps(folder / result["run"])[0]["learning_rate"] == pytest.approx(3e-4 * 8 / 16)


@pytest.mark.usefixtures("finished")
def test_a_run_that_is_over_goes_on_with_more_samples_and_in_another_layout(oppa, train) -> None:
    again, _ = train("--run", "r")
    assert again["steps"] == 12
    more, said = train("tp=2,micro_batch=4", "--run", "r", "--set", "train.samples=160")
    assert (more["steps"], more["samples"], more["configuration"]) == (20, 160, "dp1_tp2_pp1_z0_mbs4")
    assert "dp1_tp2_pp1_z0_mbs4, batch 8 in" in said
    assert [line["configuration"] for line in steps(oppa.folder / "r")][11:14] == ["dp2_tp1_pp1_z0_mbs1"] * 2 + ["dp1_tp2_pp1_z0_mbs4"]


@pytest.mark.parametrize("number", [signal.SIGTERM, *nightly(signal.SIGINT)])
def test_a_signal_saves_the_state_and_the_same_command_goes_on(number, oppa, train, trained) -> None:
    process, run = oppa.start("train", "job.toml", "--run", "r"), oppa.folder / "r"
    until(lambda: len(steps(run)) >= 2)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and "Continue with\n\n  oppa train job.toml --run r" in said
    done = steps(run)
    assert 2 <= len(done) < 12 and checkpoints(run)[0].name == f"step-{len(done)}"
    result, _ = train("--run", "r")
    assert result["samples"] == 96 and result["loss"] == trained[1]["loss"]


@pytest.mark.faults
def test_a_run_has_one_supervisor_whose_death_leaves_nothing_running_and_the_same_command_goes_on(oppa, train) -> None:
    process, run = oppa.start("train", "job.toml", "--run", "r", "--set", "train.samples=100000"), oppa.folder / "r"
    until(lambda: checkpoints(run))
    assert "is being trained by another process" in oppa("train", "job.toml", "--run", "r", code=2).stderr
    uuid = json.loads((run / "run.json").read_text())["uuid"]
    process.kill()
    process.communicate()

    def gone():
        from oppa.trials import processes

        return not processes.tagged(lambda environment: environment.get(processes.STUDY_TAG) == uuid)

    until(gone, timeout_s=15)
    result, said = train("--run", "r", "--set", f"train.samples={len(steps(run)) * 8 + 40}")
    assert result["ending"] == "finished" and "resumes from step-" in said


@pytest.mark.usefixtures("finished")
def test_what_a_run_is_cannot_be_changed(oppa) -> None:
    job = oppa.folder / "job.toml"
    job.write_text(TRAIN_JOB.replace("layers = 2", "layers = 4"))
    assert "`layers = 2`, not 4" in oppa("train", "job.toml", "--run", "r", code=2).stderr
    job.write_text(TRAIN_JOB + "\n[training]\nseed = 1\n")
    assert "`seed = 0`, not 1" in oppa("train", "job.toml", "--run", "r", code=2).stderr
    job.write_text(TRAIN_JOB + "\n[training]\nweight_decay = 0.1\n")
    assert "leave out `weight_decay` of [training]" in oppa("train", "job.toml", "--run", "r", code=2).stderr
    (oppa.folder / "r" / "run.json").write_text("{")
    assert "is damaged" in oppa("train", "job.toml", "--run", "r", code=2).stderr


@pytest.mark.parametrize(
    ("keys", "words"),
    [('tokens = "train.bin"', "has the token 65535 at byte 2000"), ('init_from = "weights"', "`weights/config.json` cannot be read")],
)
def test_wrong_data_and_weights_are_refused_before_there_is_a_run(keys: str, words: str, oppa) -> None:
    (oppa.folder / "train.bin").write_bytes(b"\x01\x00" * 1000 + b"\xff\xff")
    (oppa.folder / "weights").mkdir()
    (oppa.folder / "job.toml").write_text(f"{TRAIN_JOB}\n[training]\n{keys}\n")
    said = oppa("train", "job.toml", "--run", "r", code=2).stderr
    assert words in said.replace(f"{oppa.folder}/", "") and "hint: " in said
    assert not (oppa.folder / "r").exists()


@pytest.fixture
def table(oppa) -> Path:
    """Write a table, into the job's folder, of two configurations that a profile has measured, and one that it has not."""
    (oppa.folder / "job.toml").write_text(TRAIN_JOB)
    problem = load_job(oppa.folder / "job.toml")
    facts = {"method": "active", "complete": True, "candidates": 3, "trials": 2, "spent_s": 1.0, "created_at": 0.0}
    sizes = {4: (20.0, "measured"), 2: (10.0, "measured"), 1: (90.0, "predicted")}
    rows = tuple(
        TableRow(
            configuration=Configuration(dp=2, global_batch=8, micro_batch=size),
            steps_per_s=rate,
            log_stddev=0.1,
            memory_bytes=1 << 20,
            source=source,
        )
        for size, (rate, source) in sizes.items()
    )
    Table(rows=rows, origin=Origin.of(problem, study="s", **facts)).write(oppa.folder / "t")
    return oppa.folder / "t"


def test_a_run_begins_with_the_tables_fastest_and_refines_a_copy(oppa, train, table) -> None:
    before = Table.read(table)
    result, said = train("--table", "t", "--run", "r")
    assert result["configuration"] == "dp2_tp1_pp1_z0_mbs4" and "refined by 11 steps" in said
    after = Table.read(oppa.folder / "r" / "table")
    assert Table.read(table) == before and after.origin.training_steps == 11
    seen = [line["step_time_s"] for line in steps(oppa.folder / "r")][1:]
    rate = next(row.steps_per_s for row in after.rows if row.configuration.micro_batch == 4)
    trained = len(seen) / sum(seen)
    assert abs(math.log(rate / trained)) <= abs(math.log(20 / trained)), "nearer to what training has seen"


def test_a_table_without_the_jobs_batch_is_reported_and_the_run_begins_with_the_default(oppa, table) -> None:
    said = oppa("train", "job.toml", "--table", "t", "--run", "r", "--set", "batch.global_batch=16", "--set", "train.samples=32").stderr
    assert said.count("no measured row of the global batch 16") == 1
    assert RunSpec.read(oppa.folder / "r").configuration.id == "dp2_tp1_pp1_z0_mbs1"


@pytest.mark.parametrize(
    ("setting", "micro_batch"), [("global_batch=8", 4), ("global_batch=8,micro_batch=2", 2), ("micro_batch=1,dp=2", 1)]
)
def test_a_batch_means_the_fastest_row_of_the_table_that_fits_the_setting(oppa, table, setting: str, micro_batch: int) -> None:
    _, configuration = resolve_with_table(oppa.folder / "job.toml", setting, Table.read(table))
    assert configuration is not None and configuration.micro_batch == micro_batch


def test_a_table_of_another_job_or_one_that_was_edited_trains_nothing(oppa, table) -> None:
    (oppa.folder / "other.toml").write_text(TRAIN_JOB.replace("layers = 2", "layers = 4"))
    assert "the table is foreign" in oppa("train", "other.toml", "--table", "t", code=2).stderr
    csv = table / "table.csv"
    csv.write_text(csv.read_text().replace("20.0", "21.0", 1))
    assert "is damaged" in oppa("train", "job.toml", "--table", "t", code=2).stderr
    assert not (oppa.folder / "runs").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("samples = 96", "samples = 0"), "samples"),
        (("warmup = 16", "warmup = 97"), "`warmup = 97` is more than `samples = 96`"),
        (("warmup = 16", 'decay = "steep"'), "steep"),
        (("[train]\n", '[runner]\nname = "simulated"\n\n[train]\n'), "the runner `simulated` runs trials only, and cannot train a run"),
    ],
)
def test_a_wrong_run_option_is_reported(change, said, oppa) -> None:
    job = TRAIN_JOB.replace(*change)
    (oppa.folder / "job.toml").write_text(job.replace("memory_limit", 'device = "H100"\nmemory_limit') if "simulated" in job else job)
    assert said in oppa("train", "job.toml", code=2).stderr
    assert not (oppa.folder / "runs").exists()


@pytest.mark.parametrize("configuration", ["tp=2,micro_batch=4", "dp=1,pp=2,micro_batch=4"])
def test_a_policy_of_workers_is_refused_where_they_share_a_batch(configuration: str, oppa) -> None:
    (oppa.folder / "job.toml").write_text(TRAIN_JOB)
    done = oppa("train", "job.toml", configuration, "--policy", "proportional", "--run", "r", code=2)
    assert "`--policy proportional` gives each worker a batch of its own" in done.stderr and "such as `dp=2`" in done.stderr
    assert not (oppa.folder / "r" / "run.json").exists()


def test_a_run_that_would_end_within_its_warm_up_is_refused(oppa) -> None:
    (oppa.folder / "job.toml").write_text(TRAIN_JOB)
    assert "`warmup = 16` is more than `samples = 3`" in oppa("train", "job.toml", "--set", "train.samples=3", code=2).stderr


FACTS = {"loss": 1.0, "learning_rate": 1e-3, "configuration": "c", "global_batch": 8, "noise_scale": None, "health": "no_signal"}


@contextlib.contextmanager
def watched(folder, monkeypatch):
    """Yield the ledger of a run, and the view of it, which prints every step."""
    monkeypatch.setattr(run_view, "LINE_S", 0.0)
    (folder / "job.toml").write_text(TRAIN_JOB)
    run = RunSpec(uuid="u", problem=load_job(folder / "job.toml"), configuration=Configuration(dp=2, global_batch=8, micro_batch=4))
    with contextlib.closing(ledger.Ledger(folder)) as written:
        yield written, run_view.RunView(run, folder, Interruption())


def test_the_watcher_outlives_an_attempt_that_takes_long_to_come_back(tmp_path, monkeypatch, capsys) -> None:
    with watched(tmp_path, monkeypatch) as (written, watcher):
        watcher.began(tmp_path / "0001")
        written.write(ledger.STEP, step=0, samples=[0, 8], step_time_s=0.5, updated=True, **FACTS)
        watcher.tick()
        watcher.began(tmp_path / "0002")
        watcher.tick()
        written.write(ledger.STEP, step=0, samples=[0, 8], step_time_s=0.25, updated=True, **FACTS)
        watcher.tick()
    said = capsys.readouterr().err.splitlines()
    assert ["2.00 steps/s" in line for line in said] == [True, False] and "4.00 steps/s" in said[1], "each attempt at its own speed"


def test_no_step_before_a_resume_is_printed_after_it(tmp_path, monkeypatch, capsys) -> None:
    with watched(tmp_path, monkeypatch) as (written, watcher):
        watcher.began(tmp_path / "0002")
        written.write(ledger.STEP, step=75, samples=[600, 608], step_time_s=0.5, updated=True, **FACTS)
        written.write(ledger.STARTED, step=50, checkpoint="step-50")
        watcher.tick()
        written.write(ledger.STEP, step=50, samples=[400, 408], step_time_s=0.5, updated=True, **FACTS)
        watcher.tick()
    assert re.findall(r"^steps? (\d+)", capsys.readouterr().err, re.MULTILINE) == ["50", "51"]


def test_a_step_is_printed_once_however_long_the_next_one_takes(tmp_path, monkeypatch, capsys) -> None:
    with watched(tmp_path, monkeypatch) as (written, watcher):
        watcher.began(tmp_path / "0001")
        for step in range(2):
            written.write(ledger.STEP, step=step, samples=[8 * step, 8 * step + 8], step_time_s=0.5, updated=True, **FACTS)
            for _ in range(3):
                watcher.tick()
    assert capsys.readouterr().err.count("steps/s") == 2


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ([(run_book.ADVISED, 16), (run_book.RECORDED, 0), (run_book.ADVISED, 16)], ["16"]),
        ([(run_book.ADVISED, 16), (run_book.ADVISED, 32), (run_book.ADVISED, 16)], ["16", "32", "16"]),
        ([(run_book.ADVISED, 16), (run_book.WITHDRAWN, 0), (run_book.ADVISED, 16)], ["16", "16"]),
        ([(run_book.HELD_BACK, 16), (run_book.HELD_BACK, 16), (run_book.ADVISED, 16)], ["16", "16"]),
    ],
)
def test_a_decision_that_is_not_followed_is_printed_once_while_it_stands(lines, shown, tmp_path, capsys) -> None:
    (tmp_path / "job.toml").write_text(TRAIN_JOB)
    present = Configuration(dp=2, global_batch=8, micro_batch=4)
    run = RunSpec(uuid="u", problem=load_job(tmp_path / "job.toml"), configuration=present)
    with contextlib.closing(ledger.Ledger(tmp_path)) as written:
        watcher = run_view.RunView(run, tmp_path, Interruption())
        for step, (event, batch) in enumerate(lines):
            after = dataclasses.replace(present, global_batch=batch or 8).to_dict()
            written.write(event, step=step, after=after, failure="why", reason=f"gain {step}", place="step-1")
        watcher.tick()
    assert re.findall(r"batch (16|32)", capsys.readouterr().err) == shown


@pytest.mark.parametrize(("policy", "measured", "warned"), [("goodput", 60, 0), ("goodput", 1, 0), ("goodput", 0, 1), ("stagewise", 0, 0)])
def test_a_policy_without_its_measurement_is_said_once(policy, measured, warned, tmp_path, capsys) -> None:
    (tmp_path / "job.toml").write_text(TRAIN_JOB)
    problem = load_job(tmp_path / "job.toml")
    run = RunSpec(uuid="u", problem=problem, configuration=Configuration(dp=2, global_batch=8, micro_batch=4), policy=policy)
    write_steps(tmp_path, run, ["too_few_samples" if step < measured else "not_measured" for step in range(120)])
    assert capsys.readouterr().err.count("measures no gradient noise, without which `goodput` changes nothing") == warned


@pytest.mark.parametrize(
    ("healths", "warned"),
    [
        (["too_few_samples"] * 900, 1),
        (["not_measured", "too_few_samples"] * 250, 1),
        (["too_few_samples"] * 390, 0),
        (["too_few_samples"] * 90 + ["no_signal"] * 900, 0),
    ],
)
def test_gradients_that_show_no_noise_are_said_once(healths, warned, tmp_path, capsys) -> None:
    (tmp_path / "job.toml").write_text(TRAIN_JOB)
    problem = load_job(tmp_path / "job.toml", argv=["train.py", "--micro-batch", "{micro_batch}"])
    run = RunSpec(uuid="u", problem=problem, configuration=Configuration(dp=1, global_batch=8, micro_batch=8), policy="goodput")
    write_steps(tmp_path, run, healths)
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("measures gradients that show no noise, without which `goodput` changes nothing") == warned
    assert said.count("`statistics.begin` returns") == warned


@pytest.mark.parametrize(
    ("every", "steps", "hint"), [(0, 60, "give it `statistics_every` of 1 or more"), (1, 900, "give it several micro-batches")]
)
def test_the_built_in_trainer_has_remedies_of_its_own(every, steps, hint, tmp_path, capsys) -> None:
    (tmp_path / "job.toml").write_text(TRAIN_JOB)
    problem = load_job(tmp_path / "job.toml")
    problem = dataclasses.replace(problem, run_options=dataclasses.replace(problem.run_options, statistics_every=every))
    run = RunSpec(uuid="u", problem=problem, configuration=Configuration(dp=1, global_batch=8, micro_batch=8), policy="goodput")
    write_steps(tmp_path, run, ["too_few_samples"] * steps)
    assert hint in " ".join(capsys.readouterr().err.split())


def write_steps(folder, run, healths) -> None:
    """Write steps of these healths, and show them."""
    facts = {"loss": 1.0, "learning_rate": 1e-3, "configuration": "c", "global_batch": 8, "noise_scale": None, "updated": True}
    with contextlib.closing(ledger.Ledger(folder)) as written:
        watcher = run_view.RunView(run, folder, Interruption())
        watcher.began(folder / "0001")
        for step, health in enumerate(healths):
            written.write(ledger.STEP, step=step, samples=[8 * step, 8 * step + 8], step_time_s=0.5, health=health, **facts)
        watcher.tick()


@pytest.mark.parametrize(("policy", "ratio", "warned"), [("norm-test-paper", "variance", 1), ("norm-test-paper", "worker_variance", 0)])
def test_a_norm_test_of_workers_that_an_own_trainer_does_not_compare_is_said_once(policy, ratio, warned, tmp_path, capsys) -> None:
    (tmp_path / "job.toml").write_text(TRAIN_JOB)
    problem = load_job(tmp_path / "job.toml", argv=["train.py", "--micro-batch", "{micro_batch}"])
    run = RunSpec(uuid="u", problem=problem, configuration=Configuration(dp=2, global_batch=8, micro_batch=4), policy=policy)
    facts = {"loss": 1.0, "learning_rate": 1e-3, "configuration": "c", "global_batch": 8, "noise_scale": 4.0, "updated": True}
    facts |= {"health": "healthy", "variance_ratio": 4.0, "worker_variance_ratio": None, f"{ratio}_ratio": 4.0}
    with contextlib.closing(ledger.Ledger(tmp_path)) as written:
        watcher = run_view.RunView(run, tmp_path, Interruption())
        watcher.began(tmp_path / "0001")
        for step in range(120):
            written.write(ledger.STEP, step=step, samples=[8 * step, 8 * step + 8], step_time_s=0.5, **facts)
        watcher.tick()
    assert capsys.readouterr().err.count('give it `oppa.training.GradientStatistics(model, over="workers")`') == warned


def test_what_fails_before_its_first_step_is_not_tried_again(oppa, train) -> None:
    (oppa.folder / "job.toml").write_text(TRAIN_JOB.replace("[train]", f'[training]\ncorpus = "{oppa.folder / "texts"}"\n\n[train]'))
    (oppa.folder / "texts").mkdir()
    (oppa.folder / "texts" / "short").write_text("short")
    result, said = train(code=1)
    assert result["ending"] == "failed" and result["attempts"] == 1 and "less than a sequence" in result["cause"]
    assert "less than a sequence" in said and str(Path("attempts", "0001", "stderr.log")) in said


def test_a_run_that_cannot_begin_leaves_no_folder(oppa, train) -> None:
    for folder in ((), ("--run", "r")):
        asked = ("cp=2,micro_batch=1", "--set", 'space.name="torch-long-context"', *folder)
        assert "cannot measure the gradient noise scale" in oppa("train", "job.toml", *asked, code=2).stderr
    assert not (oppa.folder / "runs").exists() and not (oppa.folder / "r").exists()
