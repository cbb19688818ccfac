"""Check that a release gets its section of the changelog."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".github" / "release_notes.py"
TEXT = """# Changelog

## Unreleased

- Next.

## [0.2.0] - 2026-01-02

### Added

- A thing.

## 0.2.0rc1

- A candidate.

## 0.1.0

"""


@pytest.mark.parametrize(
    ("version", "notes"),
    [("0.2.0", "### Added\n\n- A thing."), ("0.2.0rc1", "- A candidate."), ("0.1.0", ""), ("0.2", ""), ("0x2y0", "")],
)
def test_a_version_has_its_own_section_alone(version, notes) -> None:
    assert runpy.run_path(str(SCRIPT))["section"](TEXT, version) == notes


def test_a_tag_without_a_section_fails() -> None:
    ran = subprocess.run([sys.executable, str(SCRIPT), "v99.0.0"], capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and "no section with changes in 99.0.0" in ran.stderr and not ran.stdout


def test_the_workflow_stops_before_it_builds_without_notes() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert workflow.index("release_notes.py") < workflow.index("make wheel")
    assert "--notes-file notes/notes.md" in workflow
