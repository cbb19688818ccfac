"""An error that nobody foresaw has an exit code of its own and no traceback, and nothing that is printed reaches the terminal's control."""

from pathlib import Path

import pytest

from oppa.errors import InputError
from tests.command_line import Oppa


@pytest.mark.parametrize("verbose", [(), ("-v",)])
def test_a_mistake_in_oppa_says_what_to_report(verbose: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("oppa.problem.job.load_job", mistaken)
    (tmp_path / "job.toml").write_text("")
    printed = Oppa(tmp_path)(*verbose, "tune", "job.toml", code=70).stderr
    assert "error: oppa made a mistake: ZeroDivisionError: division by zero (test_errors.py, line" in printed
    assert "run it again with -v" in printed and ("Traceback" in printed) == bool(verbose)


def test_what_a_message_quotes_controls_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InputError("`\x1b]0;evil\x07\x1b[2J\ud800` is wrong", hint="a\tb\nc\u3000\x1b[31m\x9b1m")

    monkeypatch.setattr("oppa.problem.job.load_job", refuse)
    (tmp_path / "job.toml").write_text("")
    printed = Oppa(tmp_path)("tune", "job.toml", code=2).stderr
    assert "\u3000" in printed and not set(printed) & {"\x1b", "\x07", "\x9b", "\ud800"} and "a\tb\nc" in printed
