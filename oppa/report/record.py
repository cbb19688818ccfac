"""Write a record under `results/`: a generated table.md that states its claim, its command and its hardware."""

import contextlib
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from oppa import __version__
from oppa.errors import InputError
from oppa.problem.software import Software
from oppa.redaction import redacted
from oppa.report.inputs import NAME as INPUTS
from oppa.report.inputs import Inputs
from oppa.units import format_bytes

RECORD = "table.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Describes a table with a heading and a sentence or two."""

    title: str
    text: str
    columns: Sequence[str]
    """A column whose name starts with `>` is aligned to the right."""
    rows: Sequence[Sequence[object]]


@contextlib.contextmanager
def written(folder: Path, *, named: str = "folder") -> Iterator[None]:
    """Create a folder, and guard the writes to it in a `with` block; raises InputError, whose hint has what `--out` names, if one fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise InputError(f"`{folder}` cannot be written: {error.strerror}", hint=f"name another {named}: `--out {named.upper()}`") from None


def write_texts(folder: Path, texts: Mapping[str, str], *, named: str = "folder") -> None:
    """Write texts to files, by name; raises InputError, whose hint has what `--out` names, if one cannot be written."""
    with written(folder, named=named):
        for name, text in texts.items():
            (folder / name).write_text(text)


def write_record(
    folder: Path,
    title: str,
    sections: Sequence[Section],
    *,
    origins: Sequence[Mapping[str, str]] = (),
    figures: Mapping[str, str] | None = None,
    inputs: Inputs | None = None,
) -> Path:
    """Write `table.md` with the provenance of its figures: `origins`, or this process. Returns the file.

    Args:
        figures: SVG by file name, written to the same folder and shown below the table.
        inputs: Inputs that the figures of a benchmark depend on; a study's record has none.
    """
    digest = {} if inputs is None else {"digest": inputs.line}
    parts = [
        f"# {title}\n",
        *("\n".join(f"- {name}: {value}" for name, value in {**facts, **digest}.items()) + "\n" for facts in origins or [provenance()]),
    ]
    parts += [f"\n## {section.title}\n\n{section.text}\n\n{markdown(section.columns, section.rows)}" for section in sections]
    parts += [f"![{Path(name).stem}]({name})\n" for name in figures or {}]
    return write_recorded(folder, RECORD, "\n".join(parts), figures=figures or {}, inputs=inputs)


def write_recorded(folder: Path, page: str, text: str, *, figures: Mapping[str, str], inputs: Inputs | None) -> Path:
    """Write a record: its page, its figures and its inputs. Every record is written here. Returns the page's file.

    Args:
        inputs: None if the raw log in the same folder, or the page alone, is the record.

    Raises:
        InputError: a file cannot be written.
    """
    known = {} if inputs is None else {INPUTS: inputs.text}
    write_texts(folder, {**figures, **known, page: text})
    return folder / page


def markdown(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown, padded so that it reads well as text; a column whose name starts with `>` is aligned to the right."""
    right = [name.startswith(">") for name in columns]
    cells = [[name.removeprefix(">") for name in columns], *[[str(value) for value in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    lines = ["| " + " | ".join(map(_pad, row, widths, right)) + " |" for row in cells]
    rule = "|".join("-" * (width + 1) + (":" if at_right else "-") for width, at_right in zip(widths, right, strict=True))
    return "\n".join([lines[0], f"|{rule}|", *lines[1:], ""])


def provenance(of_trials: Software | None = None) -> dict[str, str]:
    """Return the provenance of this process's figures: command, date, commit, software, hardware, and the software of trials if given."""
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "botorch", "gpytorch", "numpy"))
    return {
        "command": f"`{shlex.join(redacted([*_program(), *sys.argv[1:]]))}`",
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "oppa": f"{__version__}, commit {_commit()}",
        "software": f"Python {platform.python_version()}, {packages}, {platform.system()} {platform.release().split('-')[0]}",
        "hardware": hardware(),
        **(dict(of_trials.facts) if of_trials else {}),
    }


def _program() -> list[str]:
    """Return the words that started this process, such as `oppa`, or `python -m oppa`."""
    program = Path(sys.argv[0])
    return ["python", "-m", program.parent.name] if program.name == "__main__.py" else [program.name]


def hardware() -> str:
    """Return the processors, memory and accelerators of this machine, in one line."""
    model = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    memory = next((int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    gpus = _output("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader").splitlines()
    return ", ".join([f"{os.cpu_count()} x {model}", format_bytes(memory), *gpus])


def _pad(value: str, width: int, at_right: bool) -> str:
    return value.rjust(width) if at_right else value.ljust(width)


def _commit() -> str:
    here = str(Path(__file__).parents[1])
    commit = _output("git", "-C", here, "rev-parse", "--short", "HEAD")
    changed = _output("git", "-C", here, "status", "--porcelain", "--", ".", "../search_spaces", "../priors", "../runners")
    return (commit + ("+changes" if changed else "")) or "unknown"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _output(*argv: str) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
