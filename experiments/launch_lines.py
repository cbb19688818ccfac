"""Print the page of published launch lines: what oppa understands of each, and whether it can be tuned as it stands.

`python -m experiments.launch_lines > docs/reference/launch-lines.md` writes the page. Lines are read, and nothing is started.
"""

import contextlib
import dataclasses
import html
import os
import re
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oppa.errors import InputError
from oppa.problem.detect import Machine
from oppa.report.record import markdown
from oppa.tuning.launch_line.line_job import LineJob, load_line
from oppa.tuning.launch_line.meaning import TITLES, Meaning
from oppa.tuning.launch_line.understand import understand

CASES = Path(__file__).parents[1] / "tests" / "published" / "launch_lines"
MACHINE = Machine(cores=64, memory_bytes=2**40, gpus=8, gpu="NVIDIA H100 80GB HBM3", gpu_memory_bytes=85 * 10**9)
"""The machine on which the lines are read."""
COLUMNS = ("source", "framework", "devices", "global batch", "present layout", "as it stands")
_SOURCE = re.compile(r"https://github\.com/(?P<repository>[^/]+/[^/]+)/blob/[0-9a-f]+/(?P<path>.+)")
_LAYOUT = ("dp", "dp_replicate", "tp", "cp", "sp", "pp", "ep", "micro_batch", "zero_stage", "schedule", "model_chunks", "recompute")
_USUAL: Mapping[str, object] = {"tp": 1, "cp": 1, "sp": 1, "pp": 1, "ep": 1, "dp_replicate": 1, "model_chunks": 1, "schedule": "1f1b"}
"""Values that go without saying."""
_PAGE = """# Published launch lines

`python -m experiments.launch_lines` writes this page. It reads launch lines and scripts of public repositories, which are kept as
test cases (`tests/published/launch_lines`), on a machine with eight H100. Nothing is started. The
[guide](../how-to/launch-line.md) explains what oppa reads. The [glossary](glossary.md) defines the terms.

{counts}

A line that can be tuned as it stands needs nothing but `oppa tune --` in front. For any other line, the last column is what the error
states first. Most such lines lack a name for the program's own batch argument, or what the program does with a path.

{table}"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PublishedLine:
    """Holds a published launch line, with what oppa makes of it."""

    source: str
    expected: Mapping[str, Any]
    meaning: Meaning | None
    """Meaning that oppa finds in the line; None if oppa refuses the line."""
    job: LineJob | None
    """Job that oppa makes of the line; None if oppa asks the user for more facts."""
    error: str = ""

    @property
    def is_recognised(self) -> bool:
        """Return whether the framework is the one that a reader of the source found."""
        return self.meaning is not None and self.meaning.framework == self.expected.get("framework")

    @property
    def is_wrong(self) -> bool:
        """Return whether anything that is understood differs from what a reader of the source found."""
        found, expected = self.meaning, self.expected
        if found is None:
            return False
        stated = {**found.settings, **expected.get("baseline", {})} == dict(found.settings)
        model = {**found.model, **expected.get("model", {})} == dict(found.model)
        devices, batch = expected.get("devices", found.devices.count), expected.get("global_batch", found.global_batch)
        return not (self.is_recognised and stated and model and (devices, batch) == (found.devices.count, found.global_batch))

    @property
    def cells(self) -> list[str]:
        """Return the row of the table."""
        match = _SOURCE.fullmatch(self.source)
        assert match is not None
        found, nothing = self.meaning, "-"
        shown = f"[{match['repository']}: {Path(match['path']).name}]({self.source})"
        if found is None:
            return [shown, "refused", nothing, nothing, nothing, self.error]
        layout = ", ".join(
            f"{name} {found.settings[name]}" for name in _LAYOUT if name in found.settings and found.settings[name] != _USUAL.get(name)
        )
        return [shown, found.title, str(found.devices.count), str(found.global_batch or nothing), layout or nothing, self.outcome]

    @property
    def outcome(self) -> str:
        """Return whether the line can be tuned, or the error."""
        if self.job is None:
            return self.error
        return "can be tuned" if self.job.problem.baseline is not None else "can be tuned, without a baseline"


def published_lines() -> list[PublishedLine]:
    """Return all published lines, by framework."""
    found = [_read(tomllib.loads(file.read_text())) for file in sorted(CASES.glob("*.toml"))]
    order = [*TITLES]
    return sorted(found, key=lambda each: order.index(each.meaning.framework) if each.meaning else len(order))


def _read(case: Mapping[str, Any]) -> PublishedLine:
    """Return what oppa makes of a case, in a folder of its own."""
    words, meaning, job, error = shlex.split(case["line"]), None, None, ""
    with _folder(case.get("files", {})) as folder:
        environment = {"HF_HOME": f"{folder}/no-cache", **case.get("environment", {})}
        try:
            meaning = understand(words, environment=environment, machine=MACHINE)[1]
            job = load_line(words, environment=environment, machine=MACHINE)
        except InputError as raised:
            error = _first_sentence(raised.message, folder)
    return PublishedLine(source=case["source"], expected=case["expected"], meaning=meaning, job=job, error=error)


@contextlib.contextmanager
def _folder(files: Mapping[str, str]) -> Iterator[str]:
    """Yield a folder with files, which is the current one."""
    with tempfile.TemporaryDirectory() as made:
        folder = os.path.realpath(made)
        for name, text in files.items():
            path = Path(folder, name.lstrip("/"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        with contextlib.chdir(folder):
            yield folder


def _first_sentence(message: str, folder: str) -> str:
    """Return the beginning of an error, with paths as a user in the folder has them."""
    first = message.replace(f"{folder}/", "").partition("\n")[0].partition("; ")[0].rstrip(":.")
    return re.sub("`([^`]*)`", lambda quoted: f"<code>{html.escape(quoted[1])}</code>", first)  # a path there is none of this project


def page(lines: Sequence[PublishedLine]) -> str:
    """Return the page in Markdown."""
    valid = [each for each in lines if "refused" not in each.expected]
    counts = [
        ["launch lines", len(lines)],
        ["with one meaning, by their source", len(valid)],
        ["framework recognised", sum(each.is_recognised for each in valid)],
        ["understood wrongly", sum(each.is_wrong for each in lines)],
        ["refused, with one meaning", sum(each.meaning is None for each in valid)],
        ["refused, as they have none", sum(each.meaning is None for each in lines if each not in valid)],
        ["can be tuned as they stand", sum(each.job is not None for each in lines)],
        ["need user input first", sum(each.job is None and each.meaning is not None for each in lines)],
    ]
    rows = [COLUMNS, ["---"] * len(COLUMNS), *([cell.replace("|", "\\|") for cell in each.cells] for each in lines)]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)  # not padded, as the addresses are long
    return _PAGE.format(counts=markdown(("count", ">lines"), counts).rstrip(), table=table)


if __name__ == "__main__":
    sys.stdout.write(page(published_lines()))
