"""The other commands as a user meets them."""

import json
import os
import subprocess
import sys

import pytest

from oppa.problem.job import load_job


def test_help_names_every_command(oppa) -> None:
    said = oppa("--help").stdout
    assert all(name in said for name in ("tune", "show", "space", "predict", "init", "doctor", "bench"))


def test_the_help_of_a_search_names_its_designers_and_that_of_a_comparison_names_all(oppa) -> None:
    tune, compare = (" ".join(oppa(*command, "--help").stdout.split()) for command in (("tune",), ("bench", "search")))
    assert "oppa, grid, random, exhaustive or `module:Class`" in tune and "xgboost" not in tune
    assert {"oppa-paper", "xgboost", "planner"} <= set(compare.replace(",", " ").split())


def test_prose_of_a_help_is_wrapped_at_the_terminal_s_width_and_tables_stay(oppa) -> None:
    prose, table = (oppa(command, "-h").stdout for command in ("explain", "predict"))
    assert "The cost model divides its memory" in prose
    assert "\n layout     cp, cp_mode, sequence_parallel, ep, etp, dispatcher, shard," in table


def test_help_loads_nothing_heavy(oppa) -> None:
    code = "import oppa.cli, sys; print([name for name in ('torch', 'pandas', 'numpy', 'pydantic') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_experiments_are_imported_for_a_benchmark_alone() -> None:
    code = """
import sys, typer
from oppa.cli import app
from oppa.tuning.designers import require_designer
require_designer("oppa")
bench = typer.main.get_command(app).commands["bench"]
context = typer.Context(bench)
assert bench.get_command(context, "search") and "drift" in bench.list_commands(context)
for name in ("search", "drift"):
    print(bench.get_command(context, name).name, "experiments" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "search False\ndrift True\n"


@pytest.mark.parametrize("command", [("schema", "job"), ("--version",)], ids=["while it prints", "at its end"])
def test_a_reader_that_has_ended_is_no_failure_of_the_search(command) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run([sys.executable, "-m", "oppa", *command], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_space_counts_and_lists(oppa) -> None:
    listed = oppa("space", "job.toml", "--json").stdout.splitlines()
    said = oppa("space", "job.toml").stdout
    assert f"{len(listed)} valid configurations" in said
    assert json.loads(listed[0])["global_batch"] == 16


@pytest.mark.slow
def test_init_writes_a_job_that_space_understands_and_overwrites_nothing(oppa) -> None:
    oppa("init", "new.toml")
    assert "valid configurations" in oppa("space", "new.toml").stdout
    assert "exists" in oppa("init", "new.toml", code=2).stderr
    oppa("init", "new.toml", "--force", "--model", "tiny-1m")
    assert load_job(oppa.folder / "new.toml").model.name == "tiny-1m"
    assert "did you mean `tiny-1m`?" in oppa("init", "newer.toml", "--model", "tiny-1n", code=2).stderr
    assert not (oppa.folder / "newer.toml").exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", [("space", "job.toml"), ("predict", "job.toml"), ("explain", "job.toml", "dp=2")])
def test_an_unknown_device_and_what_it_costs_are_said(oppa, command) -> None:
    job = (oppa.folder / "job.toml").read_text().replace('"100 MiB"', '"60 GiB"')
    said = []
    for device in ("NVIDIA H200 NVL", "NVIDIA H100 80GB HBM3"):
        (oppa.folder / "job.toml").write_text(job.replace('"CPU"', f'"{device}"'))
        said.append(" ".join(oppa(*command).stderr.split()))
    assert "warning: `NVIDIA H200 NVL` is not in the device catalogue, `H200` is the nearest" in said[0]
    assert "a search may take more trials" in said[0] and "catalogue" not in said[1]


@pytest.mark.slow
def test_doctor_finds_this_machine_fit(oppa) -> None:
    checks = json.loads(oppa("doctor", "--json").stdout)
    assert all(check["works"] for check in checks if check["needed"])
    assert "runner torch" in oppa("doctor").stdout


def test_show_of_nothing_is_an_error(oppa) -> None:
    assert "is not a study folder" in oppa("show", "nowhere", code=2).stderr


@pytest.mark.slow
def test_show_writes_a_record(oppa) -> None:
    oppa("tune", "job.toml", "--designer", "random", "--trials", 3, "--study", "s")
    assert "best / median" in oppa("show", "s", "--out", "record").stdout
    table = (oppa.folder / "record" / "table.md").read_text()
    assert "command: `" in table and "commit" in table and "hardware" in table
    assert len((oppa.folder / "record" / "trials.csv").read_text().splitlines()) >= 1 + 3


def test_an_unknown_benchmark_is_an_error(oppa) -> None:
    assert "did you mean `help`?" in oppa("bench", "halp", code=2).stderr


def test_every_command_is_in_a_panel_and_answers_to_h(oppa) -> None:
    shown = oppa("-h").stdout
    panels = ["Before a run", "During a run", "On a cluster", "Tools"]
    assert [panel for panel in panels if panel in shown] == panels and "Commands" not in shown
    for command in ("tune", "train", "bench"):
        assert oppa(command, "-h").stdout == oppa(command, "--help").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("why", "job.toml", "dp=2"), "`oppa explain`"),
        (("schedule",), "`oppa pipeline-schedule`"),
        (("netlab", "--", "true"), "`oppa emulate`"),
        (("learn", "job.toml"), "`oppa train-policy`"),
        (("train", "job.toml", "--recorded", "run"), "`--eval-run run`"),
        (("train", "job.toml", "--in-force=static"), "`--policy rl,baseline=static`"),
        (("train", "job.toml", "--hosts", "4"), "`--set cluster.hosts=4`"),
        (("tune", "job.toml", "--time", "10 min"), "`--set 'limits.wall_time=10 min'`"),
        (("-v", "tune", "job.toml", "--sbatch=--partition=gpu"), "`--set launcher.options.partition=gpu`"),
        (("pipeline-schedule", "--no-recompute"), "`--set search.recompute=false`"),
        (("control", "--every", "5"), "`--decision-interval 5`"),
        (("cluster", "simulate", "--most", "2"), "`--set scaling.max_scale=2`"),
        (("cluster", "run", "--first", "oldest"), "`--set scaling.growth_order=oldest`"),
    ],
)
def test_a_removed_name_answers_with_the_new_one(words, said, oppa) -> None:
    assert said in oppa(*words, code=2).stderr
