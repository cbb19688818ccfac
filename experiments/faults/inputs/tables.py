"""Hostile tables: damaged files, and files of another program whose checksums are right."""

import csv
import functools
import hashlib
import io
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.faults.case import Case
from experiments.faults.inputs import mutations

CSV, META = "table.csv", "table.meta.json"
SAMPLE = 3_000
"""Number of cases with one other value that a seed yields, of several thousand."""
JOB = """
model = {preset = "tiny-4m"}
batch = {global_batch = 8}
cluster = {devices_per_host = 4, device = "H100", memory_limit = "80 GiB"}
runner = {name = "simulated"}
"""
ODD = (
    *("", " ", "x", "nan", "inf", "-inf", "-1", "0", "1e999", "9" * 400, "9" * 5_000, "1.5", "\0", "[" * 2_000, "null", "True", "False"),
    *("true", "1 2 x", "1e-400", "1_0", "²", "../..", "$(id)", "\x1b[2J", str(2**53), str(2**63), str(-(2**63)), "1.0", "{}", '"'),
)
"""Cells that are wrong in most columns."""


def cases(seed: int) -> Iterator[Case]:
    """Yield damaged files, and a sample of those with one other value, in an order that the seed decides."""
    source, files = random.Random(seed), _files()
    made = [*_cells(), *_described()]
    made = [*source.sample(made, min(SAMPLE, len(made)))]
    for name in (CSV, META):
        made += [(f"{name} {what}", {name: body}) for what, body in mutations.damaged(files[name], seed, 300)]
        made += [(f"sealed {what}", _sealed(body)) for what, body in mutations.damaged(files[CSV], seed + 1, 200) if name == CSV]
    source.shuffle(made)
    for what, changed in made:
        yield Case(f"table, {what}", {**files, **changed})


def read(case: Case, folder: Path) -> None:
    """Read the table, and use its numbers; raises TableError if it is refused."""
    from oppa.table import Table

    case.write(folder)
    found = Table.read(folder)
    for row in found.rows:
        assert row.stddev >= 0 and row.samples_per_s > 0 and row.strategy.id and row.configuration.num_microbatches >= 0
        assert "/" not in row.configuration.id and len(row.configuration.id) < 255
    found.fastest()
    with tempfile.TemporaryDirectory() as other:
        found.write(Path(other) / "t")
        assert Table.read(Path(other) / "t").rows == found.rows, "another table is read"


@functools.cache
def _files() -> dict[str, bytes]:
    """Return the files of a table whose configurations have knobs of each type."""
    from oppa import api
    from oppa.problem.configuration import Configuration, ExtraValue
    from oppa.table import Origin, Table, TableRow

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.toml").write_text(JOB)
        facts: dict[str, Any] = {
            "study": "a-uuid",
            "method": "active",
            "complete": True,
            "candidates": 20,
            "trials": 3,
            "spent_s": 12.5,
            "created_at": 1e9,
        }
        origin = Origin.of(api.load_job(folder / "job.toml"), **facts, loss_bound=0.01, expected_loss=1e-4, command="oppa profile job.toml")
        rows = []
        for cp, algorithm, rate, fused in ((1, "Ring", 0.5, False), (2, "Tree, x", 1, True), (2, "Ring", 0.1 + 0.2, True)):
            values = {"cp": cp, "algorithm": algorithm, "rate": rate, "fused": fused}
            facts_of = {"cp": {"degree": True, "short": "c"}}
            extras = tuple(ExtraValue(name=name, value=value, **facts_of.get(name, {})) for name, value in values.items())  # type: ignore[arg-type]
            configuration = Configuration(dp=4 // cp, global_batch=8, micro_batch=1, extras=extras)
            rows.append(
                TableRow(
                    configuration=configuration, steps_per_s=1 / 3, log_stddev=0.02, memory_bytes=10**6, source="measured", trials=(1,)
                )
            )
        Table(rows=tuple(rows), origin=origin).write(folder / "t")
        return {name: (folder / "t" / name).read_bytes() for name in (CSV, META)}


def _sealed(data: bytes) -> dict[str, bytes]:
    """Return the files with another CSV and a description of it, whose checksums are right."""
    described = json.loads(_files()[META])
    body = {**described["table"], "csv_bytes": len(data), "csv_sha256": hashlib.sha256(data).hexdigest()}
    return {CSV: data, META: _described_by(described, body)}


def _described_by(described: dict[str, Any], body: dict[str, Any]) -> bytes:
    digest = hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode(errors="surrogatepass")).hexdigest()
    return json.dumps({**described, "sha256": digest, "table": body}).encode()


def _cells() -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield tables in which one cell of the first row, or one name of a column, is odd."""
    header, first, *rest = csv.reader(io.StringIO(_files()[CSV].decode()))
    for column, name in enumerate(header):
        for number, odd in enumerate((*ODD, *mutations.TEXTS)):
            for what, lines in (
                ("cell", [header, [*first[:column], odd, *first[column + 1 :]], *rest]),
                ("column", [[*header[:column], odd, *header[column + 1 :]], first, *rest]),
            ):
                text = io.StringIO()
                csv.writer(text, lineterminator="\n").writerows(lines)
                yield f"{what} {name} {number}", _sealed(text.getvalue().encode(errors="replace"))


def _described() -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield descriptions with one other value."""
    described = json.loads(_files()[META])
    for what, changed in mutations.mutated(described["table"], (None, float("nan"), float("inf"), "\ud800")):
        yield f"description {what}", {META: _described_by(described, changed)}
    for version in (0, -1, 1, 2, 3, 4, 10**30, "3", None, 3.0, True):
        yield f"version {version}", {META: json.dumps({**described, "schema_version": version}).encode()}
