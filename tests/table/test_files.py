"""A table on disk: what is read is what was written, or an error says what became of it."""

import dataclasses
import json
import multiprocessing
import os
import re
import sys

import pandas as pd
import pytest

from oppa import catalog
from oppa.errors import TableError
from oppa.table import Origin, Table
from oppa.table.files import CSV, META, _digest, _sha256
from oppa.table.origin import SCHEMA_VERSION
from oppa.table.rows import columns
from tests.ending import join


@pytest.fixture
def folder(table, tmp_path):
    table.write(tmp_path / "t")
    return tmp_path / "t"


def edited(folder, name, old, new) -> None:
    text = (folder / name).read_text()
    assert text.count(old) >= 1
    (folder / name).write_text(text.replace(old, new, 1))


def test_a_table_reads_back_to_the_last_bit(table, folder) -> None:
    read = Table.read(folder)
    assert read == table
    assert [row.configuration.id for row in read.rows] == [row.configuration.id for row in table.rows]  # 50 and 50.0 differ there


def test_writing_again_gives_the_same_bytes(folder) -> None:
    before = (folder / CSV).read_bytes(), (folder / META).read_bytes()
    Table.read(folder).write(folder)
    assert ((folder / CSV).read_bytes(), (folder / META).read_bytes()) == before


def test_pandas_reads_a_column_for_each_knob(table, folder) -> None:
    frame = pd.read_csv(folder / CSV)
    assert tuple(frame.columns) == columns() and len(frame) == len(table.rows)
    assert list(frame.samples_per_s) == pytest.approx(list(frame.steps_per_s * frame.global_batch))
    assert frame.overlap_zero_comm.dtype == bool and (frame.devices == frame.dp * frame.tp * frame.pp).all()


def test_an_empty_table_reads_back(origin, tmp_path) -> None:
    Table(rows=(), origin=origin).write(tmp_path)
    assert Table.read(tmp_path).rows == ()


def test_a_table_cut_short_at_any_line_is_refused(folder) -> None:
    whole = (folder / CSV).read_bytes()
    cuts = [0, *(match.end() for match in re.finditer(rb"\n", whole))][:-1]
    for cut in [*cuts, len(whole) - 1]:
        (folder / CSV).write_bytes(whole[:cut])
        with pytest.raises(TableError, match=f"truncated: {cut} of {len(whole)} bytes"):
            Table.read(folder)


def test_a_single_digit_edited_is_refused(folder) -> None:
    whole = (folder / CSV).read_text()
    digits = [match.start() for match in re.finditer(r"\d", whole)]
    for at in digits[:: len(digits) // 50]:
        changed = str((int(whole[at]) + 1) % 10)
        (folder / CSV).write_text(whole[:at] + changed + whole[at + 1 :])
        with pytest.raises(TableError, match="it was edited"):
            Table.read(folder)


def test_an_edited_meta_is_refused(folder) -> None:
    edited(folder, META, '"spent_s": 12.5', '"spent_s": 12.4')
    with pytest.raises(TableError, match=r"table.meta.json` is damaged: it was edited"):
        Table.read(folder)


def test_a_meta_cut_short_anywhere_is_refused(folder) -> None:
    whole = (folder / META).read_text()
    for cut in range(0, len(whole) - 2, 40):
        (folder / META).write_text(whole[:cut])
        with pytest.raises(TableError, match="truncated"):
            Table.read(folder)


def test_a_later_schema_is_refused(folder) -> None:
    edited(folder, META, f'"schema_version": {SCHEMA_VERSION}', f'"schema_version": {SCHEMA_VERSION + 1}')
    with pytest.raises(
        TableError, match=f"schema version {SCHEMA_VERSION + 1}, but this oppa reads versions up to {SCHEMA_VERSION}"
    ) as caught:
        Table.read(folder)
    assert "upgrade oppa" in caught.value.hint


@pytest.mark.parametrize("version", ["null", '"2"', "[]", "0", "-1"])
def test_a_schema_that_is_no_number_is_damage(version, folder) -> None:
    edited(folder, META, f'"schema_version": {SCHEMA_VERSION}', f'"schema_version": {version}')
    with pytest.raises(TableError, match="is damaged"):
        Table.read(folder)


def test_the_meta_of_another_table_is_refused(table, folder, tmp_path) -> None:
    dataclasses.replace(table, rows=table.rows[::-1]).write(tmp_path / "other")
    (folder / META).write_bytes((tmp_path / "other" / META).read_bytes())
    with pytest.raises(TableError, match="it was edited"):
        Table.read(folder)


@pytest.mark.parametrize(
    ("name", "said"), [(CSV, "table.csv` is damaged: it is missing"), (META, "table.meta.json` is damaged: it is missing")]
)
def test_one_file_alone_is_no_table(folder, name, said) -> None:
    (folder / name).unlink()
    with pytest.raises(TableError, match=said):
        Table.read(folder)


def test_a_folder_without_a_table_says_how_to_make_one(tmp_path) -> None:
    with pytest.raises(TableError, match="does not contain a table") as caught:
        Table.read(tmp_path)
    assert "oppa profile" in caught.value.hint


def test_a_place_that_cannot_be_written_is_an_error(table, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TableError, match="cannot be used"):
        table.write(tmp_path / "file")


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_writer_that_dies_at_any_moment_leaves_one_table_or_the_other(table, folder, renames) -> None:
    """`renames` of its three steps happen: the new CSV is written, the new meta takes its name, the new CSV takes its name."""
    newer = dataclasses.replace(table, rows=table.rows[:2])
    context = multiprocessing.get_context("fork")
    victim = context.Process(target=_write_and_die, args=(newer, folder, renames), daemon=True)
    victim.start()
    join(victim)
    assert victim.exitcode == 9
    assert Table.read(folder) == (table if renames < 2 else newer)
    newest = dataclasses.replace(table, rows=table.rows[:1])
    newest.write(folder)
    assert Table.read(folder) == newest
    assert {file.name for file in folder.iterdir()} == {CSV, META, ".table.lock"}


def _write_and_die(table, folder, renames) -> None:
    """Write, and die where the file after so many is to get its name."""
    done = 0

    def watch(event, _) -> None:
        nonlocal done
        if event == "os.rename":
            if done == renames:
                os._exit(9)
            done += 1

    sys.addaudithook(watch)
    table.write(folder)


@pytest.mark.slow
def test_a_reader_sees_a_whole_table_while_two_write(table, folder) -> None:
    context = multiprocessing.get_context("fork")
    versions = [dataclasses.replace(table, rows=table.rows[:count]) for count in (1, 5)]
    stop = context.Event()
    writers = [context.Process(target=_write_until, args=(version, folder, stop), daemon=True) for version in versions]
    for writer in writers:
        writer.start()
    try:
        seen = []
        while len(seen) < 400 or not all(version in seen for version in versions):
            seen.append(Table.read(folder))
    finally:
        stop.set()
        for writer in writers:
            join(writer)
    assert all(each in (table, *versions) for each in seen)
    assert Table.read(folder) in versions and [writer.exitcode for writer in writers] == [0, 0]


def _write_until(table, folder, stop) -> None:
    while not stop.is_set():
        table.write(folder)


def test_what_is_written_of_the_origin_is_json(origin) -> None:
    values = json.loads(json.dumps(origin.to_dict()))
    assert Origin.from_dict(values) == origin


def as_version_1(folder, *, without: tuple[str, ...]) -> None:
    """Make a table's files those that version 1 wrote, without some columns."""
    kept = [name for name in columns() if name not in without]
    data = pd.read_csv(folder / CSV, dtype=str, keep_default_na=False)[kept].to_csv(index=False).encode()
    (folder / CSV).write_bytes(data)
    body = json.loads((folder / META).read_text())["table"] | {"csv_bytes": len(data), "csv_sha256": _sha256(data)}
    body["origin"]["schema_version"] = 1
    (folder / META).write_text(json.dumps({"schema_version": 1, "sha256": _digest(body), "table": body}))


@pytest.fixture
def even(table):
    """A table as version 1 could have it: stages of even length."""
    rows = [dataclasses.replace(row, configuration=dataclasses.replace(row.configuration, stage_layout="even")) for row in table.rows]
    return dataclasses.replace(table, rows=tuple(rows))


@pytest.mark.parametrize("without", [(), ("stage_layout",)])
def test_a_table_of_the_first_version_is_read_and_written_as_the_present_one(without, even, tmp_path) -> None:
    even.write(tmp_path)
    present = (tmp_path / CSV).read_bytes(), (tmp_path / META).read_bytes()
    as_version_1(tmp_path, without=without)
    assert Table.read(tmp_path) == even
    Table.read(tmp_path).write(tmp_path)
    assert ((tmp_path / CSV).read_bytes(), (tmp_path / META).read_bytes()) == present


def test_a_column_of_a_parameter_without_a_default_is_not_made_up(even, tmp_path) -> None:
    even.write(tmp_path)
    as_version_1(tmp_path, without=("micro_batch",))
    with pytest.raises(TableError, match="its columns do not match: 'micro_batch'"):
        Table.read(tmp_path)


@pytest.mark.parametrize("name", ["goodput", "policies", "norm-test"])
def test_the_tables_on_record_are_read(name) -> None:
    read = Table.read(catalog.root() / "results" / name / "table")
    assert read.rows and all(row.configuration.stage_layout == "even" for row in read.rows)
