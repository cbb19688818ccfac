"""Check whether each record matches its command: its arguments, tasks and input files must be those that it was made from."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from oppa import catalog
from oppa.bench.declared import DATA, logged_inputs
from oppa.bench.registry import Benchmark, Plays, Recorded, benchmarks
from oppa.errors import InputError
from oppa.report.inputs import ABSENT, Inputs

PAGES = ("table.md", "README.md")
REFERENCE, LOG = "reference.json", "runs.jsonl"
State = Literal["matches", "stale", "no record", "not checked"]
"""The state `not checked` means that measured data used for the record are missing on this machine."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Describes the state of one record of a benchmark."""

    name: str
    """Name of the benchmark."""
    shows: str
    record: str
    """Folder of the record, relative to the checkout."""
    command: str
    """Command that makes the record."""
    date: str | None
    commit: str | None
    digest: str | None
    """Digest of the inputs that the record was made from."""
    digest_now: str
    """Digest of the inputs that the command would have now."""
    state: State
    why: tuple[str, ...]
    """Differences, or missing data."""

    @property
    def is_stale(self) -> bool:
        """Return whether the command would make another record now; a record with missing data counts as not stale."""
        return self.state in ("stale", "no record")


def standings(among: Mapping[str, Benchmark] | None = None) -> list[Standing]:
    """Return the standing of every record of these benchmarks; of all by default."""
    found = benchmarks() if among is None else among
    return [standing(name, benchmark.shows, recorded) for name, benchmark in found.items() for recorded in benchmark.recorded]


def standing(name: str, shows: str, recorded: Recorded) -> Standing:
    """Compare one record with the inputs that its command would have now."""
    folder = catalog.root() / recorded.folder
    facts = _head(folder)
    known, now = _known(folder), recorded.inputs()
    state, why = _compared(folder, recorded, known, now) if facts else ("no record", (f"run `oppa bench {recorded.command}`",))
    return Standing(
        name=name,
        shows=shows,
        record=recorded.folder.as_posix(),
        command=f"oppa bench {recorded.command}",
        date=facts.get("date"),
        commit=facts.get("oppa", "").rpartition("commit ")[2] or None,
        digest=known.digest if known else None,
        digest_now=now.digest,
        state=state,
        why=why,
    )


def _compared(folder: Path, recorded: Recorded, known: Inputs | None, now: Inputs) -> tuple[State, tuple[str, ...]]:
    if known is None:
        return "stale", ("the record has no digest of its inputs",)
    absent = [name for name in now.absent if name.startswith(DATA) and known.files.get(name, ABSENT) != ABSENT]
    differs = [name for name in known.differences(now) if name not in absent]
    lacking = [*_lacking(folder / LOG, recorded.plays, known.tasks)] if recorded.plays else []
    if differs or lacking:
        return "stale", (*differs, *lacking)
    return ("not checked", tuple(f"{name} is missing" for name in absent)) if absent else ("matches", ())


def _known(folder: Path) -> Inputs | None:
    """Return the inputs that a record was made from, or None if it does not state them; a log and a reference contain their own."""
    try:
        if (folder / LOG).is_file():
            with (folder / LOG).open() as file:
                return logged_inputs(json.loads(file.readline())["protocol"])
        if (folder / REFERENCE).is_file():
            values = json.loads((folder / REFERENCE).read_text())
            return Inputs.from_dict(values["inputs"]) if "inputs" in values else None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"`{folder}` is not a record: {error}", hint="run the benchmark again") from None
    return Inputs.read(folder)


def _lacking(log: Path, required: Iterable[Plays], tasks: Iterable[str]) -> Iterator[str]:
    """Yield the number of runs that the log lacks, for each designer."""
    lines = [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
    recorded = {(line["task"], line["designer"], line["seed"]) for line in lines if line.get("variation") == ""}
    every = set(tasks) | {task for task, _, _ in recorded}
    for plays in required:
        for designer in plays.designers:
            count = sum((task, designer, seed) not in recorded for task in every for seed in range(plays.seeds))
            if count or not every:
                yield f"{count or 'all'} runs of {designer} are missing"


def _head(folder: Path) -> dict[str, str]:
    """Return the facts at the head of a record's page, or an empty mapping if there is no record.

    If a fact occurs several times, the last value is the newest and counts.
    """
    if (folder / REFERENCE).is_file():
        return dict(json.loads((folder / REFERENCE).read_text()).get("origin", {}))
    page = next((folder / name for name in PAGES if (folder / name).is_file()), None)
    if page is None:
        return {}
    head = page.read_text().partition("\n## ")[0]
    pairs = (line.removeprefix("- ").partition(": ") for line in head.splitlines() if line.startswith("- "))
    return {name: value for name, _, value in pairs}
