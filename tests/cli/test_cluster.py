"""`oppa cluster`: traces made and run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.profiled_run import written
from tests.command_line import Oppa

TRACE = """\
job_id,submit_s,duration_s,gpu_num,type
elastic,0,4000,8,Pretrain
other,600,300,8,Debug
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "trace.csv").write_text(TRACE)
    return tmp_path / "trace.csv"


@pytest.fixture
def table(oppa: Oppa, tmp_path: Path) -> Path:
    """A scale table of a run on two devices, whose profile we wrote."""
    oppa("scale-table", written(tmp_path / "run"), "--devices", "2..4", "--same-replicas")
    return tmp_path / "run" / "scale-table"


def test_a_trace_is_made_and_its_waiting_reported(oppa: Oppa, tmp_path: Path) -> None:
    done = oppa("cluster", "generate", tmp_path / "made.csv", "--days", "1", "--seed", "2", "--json")
    printed = json.loads(done.stdout)
    assert printed["jobs"] == len((tmp_path / "made.csv").read_text().splitlines()) - 1
    assert {kind["kind"] for kind in printed["kinds"]} == {"Eval", "Pretrain", "SFT", "MLLM", "Debug", "Other"}
    again = oppa("cluster", "generate", tmp_path / "again.csv", "--days", "1", "--seed", "2")
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "made.csv").read_bytes()
    assert "published" in again.stdout and "written" in again.stderr


def test_a_type_without_jobs_has_no_waiting(oppa: Oppa, tmp_path: Path) -> None:
    words = "cluster", "generate", tmp_path / "made.csv", "--days", "0.01"
    kinds = {kind["kind"]: kind for kind in json.loads(oppa(*words, "--json").stdout)["kinds"]}
    absent = kinds["Pretrain"]
    assert (absent["jobs"], absent["mean_s"], absent["shares"]) == (0, None, None) and kinds["Eval"]["shares"]
    row = next(line.split() for line in oppa(*words).stdout.splitlines() if line.split()[:1] == ["Pretrain"])
    assert row == ["Pretrain", "0", *(f"{share:.1%}" for share in absent["published"])]


def test_elastic_jobs_grow_and_are_reclaimed(oppa: Oppa, trace: Path, table: Path, tmp_path: Path) -> None:
    text = trace.read_text().replace(",8,", ",2,")
    trace.write_text(text)
    words = ("--gpus", "4", "--set", "cluster.gpus_per_node=2", "--elastic", "1", "--table", table, "--policy", "greedy,none")
    done = oppa("cluster", "simulate", trace, *words, "--decisions", tmp_path / "decisions.jsonl", "--json")
    none, greedy = json.loads(done.stdout)["rows"]
    assert none["elastic"] == 1 and none["completion_s"] == 4000 and greedy["completion_ratio"] < 0.9
    decisions = [json.loads(line) for line in (tmp_path / "decisions.jsonl").read_text().splitlines()]
    assert [(each["time_s"], each["after"]) for each in decisions[:2]] == [(60, 4), (600, 2)]
    assert "waiting job" in decisions[1]["reason"]
    shown = oppa("cluster", "simulate", trace, *words)
    assert "greedy" in shown.stdout and "elastic completion" in shown.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "8", "--policy", "clever"), "clever"),
        (("--gpus", "10"), "give a multiple of 8,"),
        (("--gpus", "80000000000"), "more than any cluster has"),
        (("--gpus", "8", "--set", "scaling.threshold=2"), "threshold"),
        (("--gpus", "8", "--elastic", "3"), "is not a share"),
        (("--gpus", "8", "--set", "cluster.gpus_per_node=4", "--table", "/nowhere"), "does not contain a table"),
    ],
)
def test_what_makes_no_sense_is_refused(words: tuple[str, ...], said: str, oppa: Oppa, trace: Path, table: Path) -> None:
    own = () if "--table" in words else ("--table", table)
    done = oppa("cluster", "simulate", trace, *words, *own, code=2)
    assert said in done.stderr and "hint" in done.stderr


def test_a_job_larger_than_the_cluster_is_named(oppa: Oppa, trace: Path, table: Path) -> None:
    done = oppa("cluster", "simulate", trace, "--gpus", "4", "--set", "cluster.gpus_per_node=4", "--table", table, code=2)
    assert "`elastic` requests 8 GPUs, but the cluster has 4" in done.stderr


def test_a_trace_without_an_elastic_job_is_reported(oppa: Oppa, trace: Path, table: Path) -> None:
    done = oppa("cluster", "simulate", trace, "--gpus", "8", "--table", table, "--elastic", "0")
    assert "no job of the trace is elastic" in done.stderr


def test_no_model_is_predicted_for_a_trace_without_elastic_jobs(oppa: Oppa, trace: Path) -> None:
    words = ["oppa", "cluster", "simulate", str(trace), "--gpus", "8", "--elastic", "0"]
    program = f"import sys, atexit, oppa.cli; sys.argv = {words}; atexit.register(lambda: print(*sys.modules)); oppa.cli.main()"
    done = subprocess.run([sys.executable, "-c", program], cwd=oppa.folder, env=oppa.environment(), capture_output=True, text=True)
    assert done.returncode == 0 and "no job of the trace is elastic: a share of 0" in done.stderr
    assert "oppa.cluster.comparison" in done.stdout and "oppa.cluster.models" not in done.stdout
