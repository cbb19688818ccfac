"""Write the page of an experiment with recorded runs: provenance, tables and figures. The same records give the same bytes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.lib.run_trace import facts_of, recorded
from oppa.report.figures import standalone
from oppa.report.inputs import Inputs
from oppa.report.record import Section, markdown, write_recorded

PAGE = "README.md"

Page = tuple[str, dict[str, str]]
"""Text in Markdown, and figures as SVG by file name."""


def page_of(
    folder: Path,
    command: str,
    title: str,
    sections: Sequence[Section],
    figures: Mapping[str, tuple[str, str]],
    records: Sequence[Path] | None = None,
) -> Page:
    """Return the page of the records in a folder.

    Args:
        command: Command that makes the records.
        figures: Caption and SVG by file name.
        records: Recorded runs; None: those of the folder, which has some.

    Raises:
        InputError: there are no records.
    """
    known = facts_of(folder, recorded(folder, command) if records is None else records)
    inputs = Inputs.read(folder)
    facts = {
        **known["origin"],
        **({"digest": inputs.line} if inputs else {}),
        "versions": "; ".join(known["versions"]),
        **({"raw log": f"`runs/`, {known['runs']} runs, SHA-256 `{known['raw_log_sha256']}`"} if known["runs"] else {}),
    }
    parts = [
        f"# {title}\n",
        "\n".join(f"- {name}: {value}" for name, value in facts.items()) + "\n",
        *(f"## {section.title}\n\n{section.text}\n\n{markdown(section.columns, section.rows)}" for section in sections),
        *(f"![{caption}]({name})\n\n{caption}.\n" for name, (caption, _) in figures.items()),
    ]
    return "\n".join(parts), {name: standalone(svg) for name, (_, svg) in figures.items()}


def written_page(folder: Path, page: Page) -> Path:
    """Write a page to the folder of its records, and return its path; raises InputError if a file cannot be written."""
    text, figures = page
    return write_recorded(folder, PAGE, text, figures=figures, inputs=Inputs.read(folder))
