"""A table that is damaged, or that another program wrote, is refused with its reason: tables, traces, costs of stages, measurements."""

import csv
import dataclasses
import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.faults.inputs import tables
from experiments.faults.law import judge
from oppa import catalog
from oppa.cluster.traces import read_trace
from oppa.control.rl.weights import Weights
from oppa.errors import TableError
from oppa.pipeline.costs_file import choose, read_profiled
from oppa.simulator.replay_file import read_replay_file, read_table, replay_tasks
from oppa.table import Table
from oppa.table.files import CSV, META, _digest, _sha256
from tests.control.rl.conftest import weights  # noqa: F401 - a fixture
from tests.hostile.damage import REPLACED, edits, flipped, said
from tests.table.conftest import origin, problem, table  # noqa: F401 - fixtures

ODD = (
    "",
    "x",
    "nan",
    "inf",
    "-inf",
    "-1",
    "0",
    "1e999",
    "9" * 400,
    "9" * 5000,
    "1.5",
    "\0",
    "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    "[" * 2000,
    "null",
    "True",
    "1 2 x",
)
"""Cells that are wrong in most columns."""


@pytest.fixture
def folder(table: Table, tmp_path: Path) -> Path:  # noqa: F811
    table.write(tmp_path / "t")
    return tmp_path / "t"


def sealed(folder: Path, data: bytes) -> None:
    """Another CSV, whose checksums are right."""
    (folder / CSV).write_bytes(data)
    body = json.loads((folder / META).read_text())["table"] | {"csv_bytes": len(data), "csv_sha256": _sha256(data)}
    described(folder, body)


def described(folder: Path, body: dict[str, object]) -> None:
    (folder / META).write_text(json.dumps({"schema_version": 2, "sha256": _digest(body), "table": body}))


def used(folder: Path) -> None:
    """Read it, and use every number."""
    found = Table.read(folder)
    for row in found.rows:
        assert row.stddev >= 0 and row.samples_per_s > 0 and row.strategy.id and row.configuration.num_microbatches >= 0
    found.fastest()
    dataclasses.replace(found, rows=found.rows[:1]).write(folder.with_name("copy"))


@pytest.mark.parametrize("replace", REPLACED)
@pytest.mark.parametrize("name", [CSV, META])
def test_what_stands_in_place_of_a_file_is_refused(name: str, replace: Callable[[Path], None], folder: Path) -> None:
    replace(folder / name)
    assert said(lambda: used(folder))


@pytest.mark.parametrize("name", [CSV, META])
def test_a_flipped_bit_is_refused_or_does_not_matter(name: str, folder: Path) -> None:
    before, whole = Table.read(folder), (folder / name).read_bytes()
    for damaged in flipped(whole, 150):
        (folder / name).write_bytes(damaged)
        if not said(lambda: used(folder)):
            assert Table.read(folder) == before


@pytest.mark.slow
def test_no_cell_is_read_as_what_it_is_not(folder: Path) -> None:
    """The checksums are right each time."""
    (header, first, *rest) = csv.reader(io.StringIO((folder / CSV).read_text()))
    for column in range(len(header)):
        for odd in ODD:
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows([header, [*first[:column], odd, *first[column + 1 :]], *rest])
            sealed(folder, text.getvalue().encode())
            said(lambda: used(folder))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n" * 1000,
        b"a,b\n1,2\n",
        b"\0" * 1000,
        b"\xff\xfe",
        b'"' + b"x" * 200_000,
        b"," * 1_000_000,
        b"devices,dp\n" + b"1\n" * 100_000,
        b"steps_per_s," * 1000 + b"\n" + b"1," * 1000,
        ",".join(map(str, range(1_000_000))).encode() + b"\n1\n",
    ],
    ids=range(10),
)
def test_a_csv_of_another_kind_is_refused(data: bytes, folder: Path) -> None:
    sealed(folder, data)
    assert said(lambda: used(folder)) or not Table.read(folder).rows


@pytest.mark.slow
def test_no_field_of_the_description_has_another_type(folder: Path, problem) -> None:  # noqa: F811
    body = json.loads((folder / META).read_text())["table"]
    for _ in edits(body):
        described(folder, body)
        said(lambda: used(folder))
        said(lambda: Table.read(folder).require_for(problem))


@pytest.mark.parametrize("name", ["../../elsewhere", "/etc/passwd", "x" * 64, "A" * 64, 64, None])
def test_a_description_names_no_other_file(name: object, folder: Path) -> None:
    described(folder, json.loads((folder / META).read_text())["table"] | {"csv_sha256": name})
    with pytest.raises(TableError, match="damaged"):
        Table.read(folder)


TRACE = "job_id,submit_s,duration_s,gpu_num,type,priority\n" + "".join(f"j{n},{n}.5,10,{n + 1},eval,1\n" for n in range(5))
ACME = "job_id,gpu_num,type,submit_time,duration\na,2,Eval,2023-03-01 00:00:00+08:00,7\n"
KALOS = "job_id,arrival_s,duration_s_lo,num_gpus,job_class\na,1,2,3,x\n"
PHILLY = json.dumps(
    [
        {
            "jobid": "a",
            "submitted_time": "2017-10-07 01:11:00",
            "attempts": [
                {"start_time": "2017-10-07 01:11:30", "end_time": "2017-10-07 02:11:30", "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}]}
            ],
        }
    ]
)
COSTS = "model,pp,microbatches,T_F_ms,T_B_ms,T_W_ms,T_comm_ms\na,4,8,1,2,3,0.5\na,8,8,1,2,3,0\n"
MEASURED = "model,nodes,dp,pp,tp,zero,mbs,status,tok_s,mem_gb\n"
MEASURED += "3B,1,8,1,1,1,4,ok,200000.0,40.0\n3B,1,8,1,1,0,4,failed,,\n80B,2,1,8,2,0,1,ok,10000.0,70\n"
STAGES = "stage,T_F_ms,T_B_ms,T_W_ms\n0,1,2,3\n1,2,3,4\n"


def costs(path: Path) -> None:
    for each in read_profiled(path):
        choose([each], stages=each.costs.ranks, micro_batches=8, model=each.model)


def replay(path: Path) -> None:
    file = read_replay_file(catalog.find("search_spaces", "nanotron-h100"))
    list(replay_tasks(file, read_table(file, path)))


TEXTS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "oppa": (TRACE, read_trace),
    "acme": (ACME, read_trace),
    "kalos": (KALOS, read_trace),
    "philly": (PHILLY, read_trace),
    "costs": (COSTS, costs),
    "stages": (STAGES, costs),
    "measurements": (MEASURED, replay),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", TEXTS)
def test_a_text_of_the_users_is_read_or_refused(kind: str, tmp_path: Path) -> None:
    text, reads = TEXTS[kind]
    path = tmp_path / "file"
    path.write_text(text)
    reads(path)
    for damaged in flipped(text.encode(), 60):
        path.write_bytes(damaged)
        said(lambda: reads(path))
    for cut in range(0, len(text), 7):
        path.write_text(text[:cut])
        said(lambda: reads(path))
    if kind == "philly":
        values = json.loads(text)
        for _ in edits(values, wrongs=19):
            path.write_text(json.dumps(values))
            said(lambda: reads(path))
        return
    lines = [line.split(",") for line in text.splitlines()]
    for column in range(len(lines[0])):
        for odd in ODD:
            changed = [lines[0], [*lines[1][:column], odd, *lines[1][column + 1 :]], *lines[2:]]
            path.write_text("\n".join(map(",".join, changed)))
            said(lambda: reads(path))


@pytest.mark.parametrize("replace", REPLACED)
@pytest.mark.parametrize("kind", ["oppa", "costs"])
def test_what_stands_in_place_of_a_text_is_refused(kind: str, replace: Callable[[Path], None], tmp_path: Path) -> None:
    text, reads = TEXTS[kind]
    path = tmp_path / "file"
    path.write_text(text)
    replace(path)
    assert said(lambda: reads(path))


@pytest.mark.parametrize("kind", ["oppa", "costs"])
@pytest.mark.parametrize(
    "data", [",".join(f"c{number}" for number in range(300_000)) + "\n1\n", "a" * 1_000_000, '"' + "x\n" * 100_000, "\n" * 100_000]
)
def test_a_text_of_another_shape_is_refused(kind: str, data: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(data)
    assert said(lambda: TEXTS[kind][1](tmp_path / "file"))


def test_a_link_to_a_table_is_followed(folder: Path) -> None:
    """Tools that manage data leave links; the checksum decides."""
    (folder / CSV).rename(folder.parent / "stored")
    (folder / CSV).symlink_to(folder.parent / "stored")
    used(folder)


@pytest.mark.parametrize("replace", REPLACED)
def test_what_stands_in_place_of_a_policy_is_refused(replace: Callable[[Path], None], weights: Weights, tmp_path: Path) -> None:  # noqa: F811
    weights.save(tmp_path / "policy.safetensors")
    replace(tmp_path / "policy.safetensors")
    assert said(lambda: Weights.load(tmp_path / "policy.safetensors"))


def test_a_flipped_bit_of_a_policy_is_refused_or_another_number(weights: Weights, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "policy.safetensors"
    weights.save(path)
    whole = path.read_bytes()
    for damaged in flipped(whole, 200):
        path.write_bytes(damaged)
        said(lambda: Weights.load(path))
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    notes = json.loads(header["__metadata__"]["oppa"])
    for _ in edits(notes):
        header["__metadata__"]["oppa"] = json.dumps(notes)
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + length :])
        said(lambda: Weights.load(path))


@pytest.mark.slow
def test_hostile_tables_with_knobs_are_read_or_refused() -> None:
    verdicts = [judge(case, tables.read) for case in itertools.islice(tables.cases(seed=0), 80)]
    assert [verdict for verdict in verdicts if verdict.answer not in ("accepted", "clear")] == []
    assert {verdict.answer for verdict in verdicts} == {"accepted", "clear"}
