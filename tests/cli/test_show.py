"""`oppa show` of a study whose trials are known."""

import contextlib
import csv
import json
import os
import pty
import re
import subprocess
import sys

import pytest

from oppa.problem.job import load_job
from oppa.study import Study
from tests.cli.conftest import dp2, ran
from tests.command_line import while_full, while_read_only


def test_it_says_how_good_the_predictions_were(oppa, measured) -> None:
    said = oppa("show", measured).stdout
    assert "3 of 4 measured throughputs are within their predicted 90% interval; typical error 14%" in said  # 0, 4, 25 and 200% off
    assert json.loads(oppa("show", measured, "--json").stdout)["predicted"]["inside"] == 3


def test_a_study_is_shown_without_what_fits_surrogates(oppa, measured) -> None:
    code = """
import sys
from oppa.cli import app
app(["show", "s"], standalone_mode=False)
print([name for name in ("torch", "pandas") if name in sys.modules], file=sys.stderr)
"""
    shown = subprocess.run([sys.executable, "-c", code], cwd=oppa.folder, capture_output=True, text=True, check=True)
    assert "speed-up  2.00x" in shown.stdout and shown.stderr.endswith("[]\n")


@pytest.mark.slow
@pytest.mark.parametrize("words", [["tune", "job.toml", "--dry-run"], ["explain", "job.toml", "dp=2,micro_batch=4"]])
def test_a_plan_and_an_explanation_load_no_data_frames(oppa, words) -> None:
    code = f"import sys\nfrom oppa.cli import app\napp({words}, standalone_mode=False)\nprint('pandas' in sys.modules, file=sys.stderr)"
    shown = subprocess.run([sys.executable, "-c", code], cwd=oppa.folder, capture_output=True, text=True, check=True)
    assert shown.stderr.endswith("False\n")


def test_each_trial_shows_what_was_predicted_of_it(oppa, measured) -> None:
    said = oppa("show", measured, "--limit", 1).stdout
    header = next(line for line in said.splitlines() if "predicted" in line and "memory" in line)
    fastest = next(line for line in said.splitlines() if "dp2_tp1_pp1_z0_mbs4" in line)
    assert fastest[header.index("predicted") :].split()[0] == "300"


def test_the_result_stands_in_columns(oppa, measured) -> None:
    lines = {line.partition(" ")[0]: line for line in oppa("show", measured).stdout.splitlines()}
    contenders = [lines[name] for name in ("winner", "runner-up", "default")]
    assert len({line.index("steps/s") for line in contenders}) == len({line.index("peak") for line in contenders}) == 1
    assert "2.00x" in lines["speed-up"] and "1.43x" in lines["margin"]


def test_a_configuration_that_no_other_was_compared_with_is_not_called_the_fastest(oppa) -> None:
    problem = load_job(oppa.folder / "job.toml")
    with Study.create(oppa.folder / "s", problem.to_dict(), problem.fingerprint) as study:
        study.finish(study.claim(dp2(1)), ran(200.0))
        assert "none: no other configuration was measured" in oppa("show", "s").stdout
        study.finish(study.claim(dp2(2)), ran(100.0))
        assert "none: no trial is faster than" in oppa("show", "s").stdout


def test_the_surrogate_tells_coefficients_and_lengthscales_the_shortest_first(oppa, measured) -> None:
    said = oppa("show", measured, "--surrogate", "--json").stdout
    learned = json.loads(said)["surrogate"]
    for quantity in ("throughput", "memory"):
        scales = list(learned[quantity]["log_lengthscales"].values())
        assert scales == sorted(scales) and len(scales) == len({"dp", "tp", "pp", "micro_batch", "zero_stage"})
        assert all(lesson["after"]["spread"] <= lesson["before"]["spread"] for lesson in learned[quantity]["lessons"])
    words = oppa("show", measured, "--surrogate", "--out", "record").stdout
    assert "Not identified: " in words and "log length scale" in words
    assert "log length scale" in (oppa.folder / "record" / "table.md").read_text()


def test_a_surrogate_of_nothing_is_an_error(oppa) -> None:
    problem = load_job(oppa.folder / "job.toml")
    Study.create(oppa.folder / "s", problem.to_dict(), problem.fingerprint).close()
    assert "has no measurement yet" in oppa("show", "s", "--surrogate", code=2).stderr


def test_trials_are_written_as_rows_with_their_parameters(oppa, measured) -> None:
    oppa("show", measured, "--csv", "trials.csv")
    rows = list(csv.DictReader((oppa.folder / "trials.csv").read_text().splitlines()))
    record = json.loads(oppa("show", measured, "--json").stdout)
    of_study = sorted([*record["trials"], *record["default_trials"], *record["verification"]], key=lambda trial: trial["id"])
    assert [(row["trial"], row["micro_batch"], row["outcome"]) for row in rows] == [
        (str(trial["id"]), str(trial["configuration"]["micro_batch"]), trial["outcome"]) for trial in of_study
    ]
    assert [float(row["steps_per_s"] or 0) for row in rows] == [trial["steps_per_s"] or 0 for trial in of_study]


def test_a_record_is_written_along_with_json_and_names_the_unit_of_its_rates(oppa, measured) -> None:
    record = json.loads(oppa("show", measured, "--out", "record", "--json").stdout)
    page = (oppa.folder / "record" / "table.md").read_text()
    assert len(record["trials"]) > 1 and "| trial | configuration" in " ".join(page.split()) and "steps/s |" in " ".join(page.split())


def test_parquet_without_its_package_is_refused(oppa, measured, monkeypatch) -> None:
    monkeypatch.setattr("oppa.report.data_file.find_spec", lambda _: None)
    refusal = oppa("show", measured, "--parquet", "trials.parquet", code=3).stderr
    assert "Parquet files need `pyarrow`" in refusal and "parquet" in refusal and "--csv" in refusal


def test_parquet_has_the_same_rows(oppa, measured) -> None:
    pytest.importorskip("pyarrow")
    import pandas as pd

    oppa("show", measured, "--csv", "trials.csv", "--parquet", "trials.parquet")
    rows = pd.read_parquet(oppa.folder / "trials.parquet")
    of_csv = pd.read_csv(oppa.folder / "trials.csv", keep_default_na=False, dtype=str)
    assert list(rows.columns) == list(of_csv.columns)
    assert all(list(rows[name].map(str)) == list(of_csv[name]) for name in ("trial", "purpose", "dp", "micro_batch", "outcome"))


def test_a_file_that_cannot_be_written_is_named(oppa, measured) -> None:
    assert "`no/trials.csv` cannot be written" in oppa("show", measured, "--csv", "no/trials.csv", code=2).stderr


@pytest.mark.slow
def test_a_study_that_cannot_be_written_is_shown_and_not_continued(oppa, measured) -> None:
    prefix = while_read_only(oppa.folder)

    def read_only(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [*prefix, *oppa.argv(*words)]
        return subprocess.run(argv, cwd=oppa.folder, env=oppa.environment(), capture_output=True, text=True, timeout=120)

    known = oppa("show", measured, "--json").stdout
    assert read_only("show", measured, "--json").stdout == known
    refused = read_only("tune", "job.toml", "--study", measured, "--trials", "20")
    assert refused.returncode == 2 and "choose a writable folder" in refused.stderr, refused.stderr


@pytest.mark.slow
def test_a_study_on_a_full_disk_is_shown_and_not_continued(oppa, measured) -> None:
    prefix = while_full(oppa.folder / measured)

    def full(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [*prefix, *oppa.argv(*words)]
        return subprocess.run(argv, cwd=oppa.folder, env=oppa.environment(), capture_output=True, text=True, timeout=120)

    known = oppa("show", measured, "--json").stdout
    assert full("show", measured, "--json").stdout == known
    refused = full("tune", "job.toml", "--study", measured, "--trials", "20")
    assert refused.returncode == 3 and "No space left" in refused.stderr and "free some space" in refused.stderr, refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "last"), [(60, "steps/s"), (80, "memory")])
def test_a_narrow_terminal_breaks_no_heading(oppa, measured, columns, last) -> None:
    reader, terminal = pty.openpty()
    environment = {**oppa.environment(), "COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen(oppa.argv("show", measured), cwd=oppa.folder, env=environment, stdout=terminal):
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError), os.fdopen(reader, "rb", buffering=0) as file:  # the end of a terminal is an error
            while part := file.read(4096):
                shown += part
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown.decode())
    headings = next(line.split() for line in plain.splitlines() if "configuration" in line)
    assert headings[:4] == ["trial", "configuration", "outcome", "steps/s"] and headings[-1] == last
