"""The page on limits shows what its command prints."""

import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from oppa.cli import app

ROOT = Path(__file__).parents[2]
SHOWN = re.compile(r"```sh\noppa (?P<command>[^\n]*--dry-run)\n```\n\n```text\n(?P<lines>.*?)```", re.DOTALL)


def test_the_expected_cost_and_gain_are_those_that_the_command_prints(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "200")
    shown = SHOWN.search((ROOT / "docs" / "reference" / "limits.md").read_text())
    assert shown is not None
    printed = CliRunner().invoke(app, shlex.split(shown["command"]))
    assert printed.exit_code == 0 and printed.stdout.endswith(shown["lines"])
