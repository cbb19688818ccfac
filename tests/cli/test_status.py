"""The status of long commands: steps that begin are displayed whatever text they have."""

import io

import pytest
from rich.console import Console

from oppa.cli.views import style
from oppa.cli.views.status import showing_status


@pytest.mark.parametrize("is_terminal", [False, True])
def test_text_in_brackets_is_no_markup(is_terminal: bool, monkeypatch) -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=is_terminal, width=120, color_system=None)
    monkeypatch.setattr(style, "err", lambda: console)
    with showing_status() as tell:
        tell("a rank failed: [/w/pair.cc:537] [bold]reset")
    assert "a rank failed: [/w/pair.cc:537] [bold]reset" in shown.getvalue()
