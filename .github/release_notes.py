"""Print a version's section of CHANGELOG.md, for the release of its tag.

python .github/release_notes.py v0.3.0 > notes.md
"""

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def section(changelog: str, version: str) -> str:
    """Return the text below the heading of a version, which is `## 0.3.0`, `## [0.3.0]`, or either with a date; empty if there is none."""
    heading = rf"^## \[?{re.escape(version)}\]?(?![\w.]).*\n"
    found = re.search(heading + r"((?:(?!## ).*\n?)*)", changelog, re.MULTILINE)
    return found[1].strip() if found else ""


if __name__ == "__main__":
    version = sys.argv[1].removeprefix("v")
    notes = section(CHANGELOG.read_text(), version) or sys.exit(f"CHANGELOG.md has no section with changes in {version}")
    sys.stdout.write(f"{notes}\n")
