"""A real run under a control service of its own: `oppa train --policy`."""

import contextlib
import dataclasses
import json
import re
import signal
import sqlite3
import sys

import pytest

from oppa.launchers.emulation.netlab import netlab_lacking
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.table import Origin, Table, TableRow
from oppa.training.run import ledger
from oppa.trials.cgroups import quotas_lacking
from tests.ending import ending
from tests.jobs import TRAIN_JOB
from tests.sampling import nightly

pytestmark = pytest.mark.slow
LACKING = "; ".join(netlab_lacking())

BEGIN = Configuration(dp=2, global_batch=8, micro_batch=2)
PROMISED = Configuration(dp=1, pp=2, global_batch=16, micro_batch=2)
"""Ten times as fast, says the table."""


@pytest.fixture
def table(oppa):
    (oppa.folder / "job.toml").write_text(TRAIN_JOB)
    facts = {"study": "a", "method": "exhaustive", "complete": True, "candidates": 3, "trials": 3, "spent_s": 1.0, "created_at": 1e9}
    origin = Origin.of(load_job(oppa.folder / "job.toml"), **facts, loss_bound=None, expected_loss=None, command="oppa profile")
    rates = {BEGIN: 10.0, dataclasses.replace(BEGIN, global_batch=16): 5.0, PROMISED: 100.0}
    rows = [
        TableRow(configuration=each, steps_per_s=rate, log_stddev=0.02, memory_bytes=10**6, source="measured", trials=(1,))
        for each, rate in rates.items()
    ]
    Table(rows=tuple(rows), origin=origin).write(oppa.folder / "table")
    return oppa.folder / "table"


def test_a_run_does_what_its_controller_decides(oppa, table) -> None:
    done = oppa(
        "train", "job.toml", BEGIN.id, "--run", "run", "--set", "train.samples=600", "--table", table, "--policy", "goodput", "--json"
    )
    result = json.loads(done.stdout)
    assert result["ending"] == "finished" and "live    http://127.0.0.1:" in done.stderr and "/#token=" not in done.stderr
    assert "over the first configuration" in done.stderr and result["worth"]["regret"] is not None
    lines = ledger.standing(ledger.read(oppa.folder / "run"))
    changes = [line for line in lines if line["event"] == ledger.CHANGED]
    assert changes and Configuration.from_dict(changes[0]["after"]) == PROMISED
    assert ledger.require_whole(lines) >= 600
    assert not (oppa.folder / "run" / "control.json").exists()
    stages = json.loads(oppa("plan", "--table", table, "--noise", "run", "--cost", 0.01, "--json").stdout)
    assert stages[0]["tokens"] == 0 and Configuration.from_dict(stages[-1]["configuration"]) == PROMISED
    assert stages[-1]["tokens"] == 32 * stages[-1]["samples"] > 0
    assert "A change of layout counts as 60 s (assumed)." in oppa("plan", "--table", table, "--noise", "run").stdout
    printed = oppa("plan", "--table", table, "--noise", "run", "--cost", 0.01, "--to", "megatron").stdout
    assert "--pipeline-model-parallel-size 2" in printed and '--step-batch-size-schedule "0:16"' in printed
    assert "known" in oppa("plan", "--table", table, "--noise", "run", "--to", "nemo", code=2).stderr


@pytest.mark.parametrize("policy", ["norm-test,eta=0.01,interval=2", *nightly("norm-test-paper,eta=0.001,interval=2")])
def test_a_run_grows_its_batch_by_the_norm_test(policy, oppa, table) -> None:
    oppa("train", "job.toml", BEGIN.id, "--run", "run", "--set", "train.samples=200", "--table", table, "--policy", policy)
    lines = ledger.standing(ledger.read(oppa.folder / "run"))
    steps = [line for line in lines if line["event"] == ledger.STEP]
    assert all((line["variance_ratio"] is None) == (line["step"] % 2 == 1) for line in steps), "every other step is measured"
    assert all((line["worker_variance_ratio"] is None) == (line["step"] % 2 == 1 or "paper" not in policy) for line in steps)
    (change, *_) = (line for line in lines if line["event"] == ledger.CHANGED)
    assert Configuration.from_dict(change["after"]).global_batch == 16 and "the norm test requires" in change["reason"]
    assert ledger.require_whole(lines) >= 200


@pytest.mark.skipif(bool(quotas_lacking()), reason=quotas_lacking())
def test_a_slow_worker_gets_a_smaller_batch_of_its_own(oppa) -> None:
    (oppa.folder / "job.toml").write_text(TRAIN_JOB.replace("devices_per_host = 2", "devices_per_host = 2\ncpus_per_device = [0.8, 0.2]"))
    policy = "proportional,window=4"
    result = json.loads(
        oppa("train", "job.toml", "dp=2,micro_batch=4", "--run", "run", "--set", "train.samples=240", "--policy", policy, "--json").stdout
    )
    assert result["ending"] == "finished" and result["worth"]["gain"] is None, "nobody knows what staying is worth without a table"
    lines = ledger.standing(ledger.read(oppa.folder / "run"))
    assert ledger.require_whole(lines) >= 240
    (change, *_) = (line for line in lines if line["event"] == ledger.CHANGED)
    assert sum(change["local_batches"]) == 8 and change["local_batches"][0] > change["local_batches"][1] and "by speed" in change["reason"]
    ((first, second), *_) = [line["workers"] for line in lines[lines.index(change) :] if "workers" in line]
    assert [first["local_batch"], second["local_batch"]] == change["local_batches"], "a window is about one batch"
    assert (
        f"as {change['local_batches'][0]}, {change['local_batches'][1]}"
        in oppa("report", "run", "--out", "r.html").stderr + (oppa.folder / "r.html").read_text()
    )
    assert "unknown" not in oppa("train", "job.toml", "--run", "run", "--set", "train.samples=256", "--policy", policy).stderr


@pytest.fixture
def service(oppa, table):
    """`oppa control` at work, and where."""
    with ending(oppa.start("control", "--table", table, "--port", 0)) as running:
        printed = ""
        while "live page" not in printed:
            printed += (line := running.stderr.readline())
            assert line, printed
        yield re.search(r"127\.0\.0\.1:(\d+)", printed)[1]
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=20) == 0


def test_a_run_speaks_to_a_service_that_runs_already(oppa, table, service, monkeypatch) -> None:
    monkeypatch.setenv("OPPA_CONTROL_TOKEN", oppa("control", "--table", table, "--token", "my-job").stdout.strip())
    there = f"my-job@127.0.0.1:{service}"
    oppa("train", "job.toml", BEGIN.id, "--run", "run", "--set", "train.samples=600", "--table", table, "--control", there)
    changes = [line for line in ledger.standing(ledger.read(oppa.folder / "run")) if line["event"] == ledger.CHANGED]
    assert changes and Configuration.from_dict(changes[0]["after"]) == PROMISED
    assert changes[0]["weighed"]["chosen"]["goodput"] > changes[0]["weighed"]["current"]["goodput"]
    assert not (oppa.folder / "run" / "control").exists() and not (oppa.folder / "run" / "control.json").exists()


def test_the_token_is_that_of_the_folder_which_the_service_names(oppa, table) -> None:
    made = oppa("control", "--table", table, "--folder", "a folder", "--token", "my-job")
    assert "warning: `a folder` is new" in made.stderr
    again = oppa("control", "--table", table, "--folder", "a folder", "--token", "my-job")
    assert again.stdout == made.stdout and not again.stderr
    assert "`--token my job` is not a valid job name" in oppa("control", "--table", table, "--token", "my job", code=2).stderr
    with ending(oppa.start("control", "--table", table, "--folder", "a folder", "--port", 0)) as running:
        printed = [running.stderr.readline() for _ in range(2)]
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=20) == 0
    assert f"oppa control --table {table} --folder 'a folder' --token JOB" in printed[1]


def test_a_port_that_is_taken_is_reported(oppa, table, service) -> None:
    assert service in oppa("control", "--table", table, "--folder", "other", "--port", service, code=3).stderr


@pytest.mark.parametrize(
    ("there", "words", "token", "said"),
    [
        ("my-job@127.0.0.1:8765", (), "", "OPPA_CONTROL_TOKEN"),
        ("my-job@example.org:8765", (), "t", "SSH tunnel"),
        ("127.0.0.1:8765", (), "t", "my-job@127.0.0.1:8765"),
        ("my-job@127.0.0.1:8765", ("--policy", "goodput"), "t", "remove one of them"),
    ],
)
def test_a_service_that_is_named_wrongly_is_reported(there, words, token, said, oppa, table, monkeypatch) -> None:
    monkeypatch.setenv("OPPA_CONTROL_TOKEN", token)
    assert said in " ".join(oppa("train", "job.toml", "--table", table, "--control", there, *words, code=2).stderr.split())
    assert not (oppa.folder / "runs").exists()


@pytest.mark.skipif(bool(LACKING), reason=f"hosts cannot be emulated here: {LACKING}")
@pytest.mark.nightly
def test_ranks_on_other_hosts_reach_the_service(oppa) -> None:
    """The ranks do not share the loopback of the service."""
    job = TRAIN_JOB.replace("devices_per_host = 2", 'hosts = "allocation"\ndevices_per_host = "allocation"\ndevice = "CPU"')
    fixed = (
        "micro_batch = 2",
        "tp = 1",
        "zero_stage = 0",
        'schedule = "1f1b"',
        "model_chunks = 1",
        'recompute = "none"',
        "dp_bucket_mb = 25",
    )
    (oppa.folder / "job.toml").write_text("\n".join([job, "[space.parameters]", *fixed]))
    lab = ("emulate", "--hosts", 2, "--bandwidth", "1gbit", "--latency", "0 s", "--", *oppa.argv()[1:])
    lab = (*lab[:-2], sys.executable, *lab[-2:])
    oppa.process(*lab, "profile", "job.toml", "--global-batch", "8,16", "--table", "table", "--exhaustive")
    done = oppa.process(*lab, "train", "job.toml", "--run", "run", "--set", "train.samples=400", "--table", "table", "--policy", "goodput")
    assert "warning" not in done.stderr
    with contextlib.closing(sqlite3.connect(oppa.folder / "run" / "control" / "journal.db")) as journal:
        messages = journal.execute("SELECT count(*) FROM messages").fetchone()[0]
    assert messages >= len([line for line in ledger.read(oppa.folder / "run") if line["event"] == ledger.STEP])


def test_a_run_begins_with_a_batch_of_the_table_and_claims_no_gain_if_it_never_changed(oppa, table) -> None:
    static = ("--set", "train.samples=300", "--table", table, "--policy", "static", "--json")
    done = oppa("train", "job.toml", "global_batch=16,dp=2,micro_batch=2", "--run", "run", *static)
    (first, *_) = ledger.read(oppa.folder / "run")
    assert Configuration.from_dict(first["configuration"]).global_batch == 16
    account = json.loads(done.stdout)["worth"]
    assert account["gain"] == pytest.approx(0, abs=1e-9) and account["changed"] is False
    assert "goodput no change was made; " in done.stderr and "over the first" not in done.stderr
    refused = oppa("train", "job.toml", "global_batch=12", "--set", "train.samples=32", "--table", table, code=2).stderr
    assert "12" in refused and "8, 16" in refused
    without = oppa("train", "job.toml", "global_batch=16", "--set", "train.samples=32", code=2).stderr
    assert "`global_batch = 16` is no part of a setting" in without and "`--set batch.global_batch=...`" in without


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--policy", "fast", "--table", "table"), "fast"),
        (("--policy", "norm-test,eta=0", "--table", "table"), "eta"),
        (("--policy", "goodput"), "needs a table"),
    ],
)
def test_a_wrong_policy_is_reported(words, said, oppa, table) -> None:
    assert said in oppa("train", "job.toml", *words, code=2).stderr
    assert not (oppa.folder / "runs").exists()
