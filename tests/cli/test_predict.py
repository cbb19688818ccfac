"""`oppa predict` as a user meets it: a job's space ranked, somebody's rows predicted, and every wrong input answered."""

import io
import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from oppa.cli.commands.predict import predict
from oppa.cli.views import style
from oppa.cost.framework import frameworks
from oppa.cost.prediction import COLUMNS
from oppa.cost.rows import OPTIONAL
from oppa.errors import InputError
from oppa.units import format_seconds

HEADER = "name,layers,hidden,heads,kv_heads,ffn,vocab,seq_len,device,gpus,gpus_per_node,gbs,mbs,dp,tp,pp,model_chunks,zero,recompute"
ROW = "007,32,4096,32,8,14336,128256,4096,H100,16,8,256,2,4,2,2,1,1,none"
TEXT = f"{HEADER}\n{ROW}\n"
FIRST_COLUMNS = ("predicted_step_time_s", "predicted_tok_s", "predicted_memory_bytes", "fits")


@pytest.fixture
def write(tmp_path):
    def write_(text: str | bytes, name: str = "in.csv") -> Path:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path / name

    return write_


def test_a_job_s_configurations_are_ranked(oppa) -> None:
    said = oppa("predict", "job.toml", "--limit", 3).stdout
    ranked = [json.loads(line) for line in oppa("predict", "job.toml", "--json").stdout.splitlines()]
    assert f"{len(ranked)} valid configurations, {sum(each['fits'] for each in ranked)} of them predicted to fit" in said
    assert said.index(ranked[0]["id"]) < said.index(ranked[1]["id"]) < said.index(ranked[2]["id"])
    assert ranked[3]["id"] not in said
    assert ranked == sorted(ranked, key=lambda each: (not each["fits"], each["predicted_step_time_s"]))


def test_configurations_with_the_same_prediction_share_a_row(oppa) -> None:
    unknown = ("--set", 'space.parameters.workers={values=[0,2,4],env="WORKERS"}')
    alone, several = (oppa("predict", "job.toml", "--limit", 2, *options).stdout for options in ((), unknown))
    assert "alike" not in alone
    first, second = (line.split() for line in several.splitlines() if " dp" in line)
    assert (first[0], first[-1]) == ("1", "3") and (second[0], second[-1]) == ("4", "3")


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [(1.82, 2.79, "1.82 - 2.79"), (0.95, 1.2, "950 ms - 1.2 s"), (90, 225, "90 s - 3 min 45 s"), (225, 230, "3 min 45 s - 3 min 50 s")],
)
def test_an_interval_has_the_units_that_its_ends_differ_in(low, high, shown) -> None:
    assert style.interval(low, high, format_seconds) == shown


def test_steps_of_minutes_are_ranked(oppa) -> None:
    said = oppa("predict", "job.toml", "--limit", 1, "--set", "batch.global_batch=65536", "--set", "cluster.memory_limit=9 GiB")
    assert " min" in said.stdout


def test_an_unknown_device_is_reported(oppa) -> None:
    job = (oppa.folder / "job.toml").read_text().replace('"CPU"', '"B400"').replace("100 MiB", "10 GiB")
    (oppa.folder / "job.toml").write_text(job)
    done = oppa("predict", "job.toml")
    assert "`B400` is not in the device catalogue" in done.stderr and "predicted to fit" in done.stdout


def test_nothing_fits(oppa) -> None:
    (oppa.folder / "job.toml").write_text((oppa.folder / "job.toml").read_text().replace("100 MiB", "5 MiB"))
    said = oppa("predict", "job.toml", code=1).stderr
    assert "is predicted to fit" in said and "MiB, and 5 MiB are usable" in said and "hint: raise `memory_limit`" in said


def test_rows_come_back_with_their_predictions(oppa, monkeypatch) -> None:
    (oppa.folder / "in.csv").write_text(f"{TEXT}\n{ROW.replace(',256,', ',255,')}\n")
    done = oppa("predict", "--rows", "in.csv", "--out", "out.csv")
    assert oppa("predict", "--rows", "in.csv").stdout == (oppa.folder / "out.csv").read_text()
    assert "no prediction for 1 of the 2 rows, the first in line 4" in done.stderr  # line 3 is blank
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((oppa.folder / "in.csv").read_bytes())))
        assert oppa("predict", "--rows", "-").stdout == (oppa.folder / "out.csv").read_text()
    header, first, second = (oppa.folder / "out.csv").read_text().splitlines()
    assert header == ",".join([HEADER, *COLUMNS]) and COLUMNS[:4] == FIRST_COLUMNS
    assert first.startswith(f"{ROW},") and ",True," in first and second.endswith(",none" + 9 * ",")
    assert "line 4 breaks: gbs a multiple of dp * mbs" in " ".join(done.stderr.split())
    assert "experts a multiple of ep" not in done.stderr


def test_a_dash_in_place_of_a_file_prints_the_rows(oppa) -> None:
    (oppa.folder / "in.csv").write_text(TEXT)
    done = oppa("predict", "--rows", "in.csv", "--out", "-")
    assert done.stdout == oppa("predict", "--rows", "in.csv").stdout and "written" not in done.stderr
    assert not (oppa.folder / "-").exists()


def test_each_warning_about_rows_is_given_once(write, caplog) -> None:
    impossible = ROW.replace("H100", "V100-32GB").replace(",256,", ",255,")
    predict(rows=write(f"{HEADER},recompute_layer,precision\n{ROW},,\n{impossible},,bf16\n"))
    misspelt, lacking = caplog.messages
    assert "the column `recompute_layer` is not read" in misspelt and "has no bf16 matrix products" in lacking


def test_the_table_shows_intervals_and_the_probability_of_fitting(oppa) -> None:
    said = oppa("predict", "job.toml", "--limit", 1).stdout
    best = json.loads(oppa("predict", "job.toml", "--json", "--limit", 1).stdout.splitlines()[0])
    assert said.count("90%") >= 2 and "fits" in said
    assert best["predicted_step_time_low_s"] < best["predicted_step_time_s"] < best["predicted_step_time_high_s"]
    assert best["predicted_memory_low_bytes"] < best["predicted_memory_bytes"] < best["predicted_memory_high_bytes"]
    assert 0.5 <= best["probability_fits"] <= 1 and any(word in said for word in (f"{best['probability_fits']:.0%}", ">99%"))


def test_the_help_names_every_optional_column(oppa) -> None:
    said = oppa("predict", "--help").stdout
    assert not [name for name in (*OPTIONAL, *frameworks()) if name not in said]


def test_what_is_passed_through_stays_text(write) -> None:
    source = write(f'{HEADER},note\n{ROW},"a, b"\n{ROW},0.10\n{ROW},NA\n')
    predict(rows=source, out=source)  # in its place
    answer = pd.read_csv(source, dtype=str, keep_default_na=False)
    assert answer["name"].tolist() == ["007"] * 3 and answer["note"].tolist() == ["a, b", "0.10", "NA"]
    assert [path.name for path in source.parent.iterdir()] == ["in.csv"]


def test_spaces_around_the_names_of_columns_have_no_meaning(write) -> None:
    predict(rows=write(TEXT.replace(HEADER, HEADER.replace(",", ", "))), out=write("", "out.csv"))
    assert list(pd.read_csv(write(TEXT).with_name("out.csv")))[:3] == HEADER.split(",")[:3]


def test_columns_without_name_and_cells_are_dropped(write) -> None:
    predict(rows=write(f"{HEADER},,,\n{ROW},,,x\n"), out=write("", "out.csv"))
    assert list(pd.read_csv(write(TEXT).with_name("out.csv")))[:-9] == [*HEADER.split(","), f"Unnamed: {HEADER.count(',') + 1}"]


def test_a_line_break_inside_a_cell_is_a_line_of_the_file(write) -> None:
    text = f'{HEADER},"no\nte"\n{ROW},"a\nb"\n\n{ROW.replace("H100", "H10O")},\n'
    assert text.splitlines()[5].startswith("007") and "H10O" in text.splitlines()[5]
    with pytest.raises(InputError, match="line 6: `device = H10O`"):
        predict(rows=write(text), out=None)


def test_tokens_per_second_are_those_of_a_step(write) -> None:
    predict(rows=write(TEXT), out=write("", "out.csv"))
    (answer,) = pd.read_csv(write(TEXT).with_name("out.csv")).to_dict("records")
    assert answer["predicted_tok_s"] * answer["predicted_step_time_s"] == pytest.approx(256 * 4096, rel=1e-4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        (f"\n{TEXT}", "the first line of"),
        ("some words\nand more\n", "its first line has no comma"),
        (b"\xff\xfe,\x00\n", "codec can't decode"),
        (f"{TEXT}{ROW},1\n", "Expected 19 fields in line 3, saw 20"),
        (f'{HEADER}\n"{ROW}\n', "EOF inside string"),
        (TEXT.replace("zero", "stage"), "have no column `zero`\n\nhint: add it; the rows need layers, hidden, "),
        (TEXT.replace("zero", "zeros"), "have no column `zero`\n\nhint: rename the column `zeros`, if it means that"),
        (TEXT.replace("hidden", "Hidden"), "have no column `hidden`\n\nhint: rename the column `Hidden`, if it means that"),
        (f"{TEXT}\n{ROW.replace('H100', 'H1OO')}\n", "line 4: `device = H1OO`"),
        (f"{TEXT}{ROW.replace('4096,32', 'wide,32')}\n", "line 3: `hidden = wide`"),
        (f"{TEXT}{ROW[:-7]}\n", "line 3: `zero` is empty"),
        (TEXT.replace("name", "fits"), "have a column `fits` already"),
        (TEXT.replace("name", "dp"), "have two columns `dp`"),
    ],
)
def test_a_wrong_file_is_answered(text, message, write) -> None:
    with pytest.raises(InputError) as raised:
        predict(rows=write(text), out=write("kept", "out.csv"))
    assert raised.value.hint and message in f"{raised.value.message}\n\nhint: {raised.value.hint}"
    assert write(text).with_name("out.csv").read_text() == "kept"


def test_what_cannot_be_read_or_written_is_answered(write, tmp_path) -> None:
    for source in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(InputError, match=r"cannot be read: (No such file|Not a regular file)"):
            predict(rows=source)
    with pytest.raises(InputError, match="cannot be written"):
        predict(rows=write(TEXT), out=tmp_path / "nowhere" / "out.csv")
    for out in (tmp_path, Path("/dev/null")):
        with pytest.raises(InputError, match="is not a file"):
            predict(rows=write(TEXT), out=out)


@pytest.mark.parametrize("given", [{}, {"job": "j", "rows": "r"}, {"job": "j", "out": "o"}, {"rows": "r", "as_json": True}, {"out": "o"}])
def test_a_job_or_rows(given) -> None:
    with pytest.raises(InputError, match="needs either JOB"):
        predict(**{name: Path(value) if isinstance(value, str) else value for name, value in given.items()})


def test_rows_that_no_framework_can_run_are_exit_code_1(oppa) -> None:
    impossible = ROW.replace(",256,", ",255,")
    (oppa.folder / "in.csv").write_text(f"{HEADER}\n{impossible}\n{impossible}\n")
    said = oppa("predict", "--rows", "in.csv", "--out", "out.csv", code=1).stderr
    assert "no prediction for any of the 2 rows of `in.csv`" in said and "hint: line 2 breaks: gbs a multiple of dp * mbs" in said
    assert len((oppa.folder / "out.csv").read_text().splitlines()) == 3


def test_a_row_that_does_not_fit_is_predicted(oppa) -> None:
    (oppa.folder / "in.csv").write_text(f"{HEADER}\n{ROW.replace('4096,32', '65536,32')}\n")
    assert ",False," in oppa("predict", "--rows", "in.csv").stdout


def test_wrong_input_is_exit_code_2(oppa) -> None:
    assert oppa("predict", code=2).stderr.startswith("error: `oppa predict` needs either JOB")
    assert "hint: name a CSV file" in oppa("predict", "--rows", "none.csv", code=2).stderr
