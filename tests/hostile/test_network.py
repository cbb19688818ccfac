"""oppa connects to no other machine, and sends no telemetry: neither the tuner, nor what it adds to a trial."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import Oppa
from tests.connections import Connections
from tests.own_program import JOB, PROGRAM

pytestmark = pytest.mark.slow


@pytest.fixture
def connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Connections:
    found = Connections(tmp_path)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    return found


def test_a_search_and_its_reports_connect_to_nothing(tmp_path: Path, connections: Connections) -> None:
    oppa = Oppa(tmp_path)
    (tmp_path / "own.toml").write_text(JOB)
    (tmp_path / "program.py").write_text(PROGRAM)
    line = ("--set", "limits.device_lock=false", "--", sys.executable, "program.py", "{micro_batch}", "6")
    for words in (
        ("tune", "own.toml", "--study", "s", *line),
        ("show", "s"),
        ("report", "s"),
        ("export", "s", "--to", "torchrun", "--out", "x"),
    ):
        oppa.process(*words, timeout_s=300)
    assert connections.read() == ""
    assert connections.processes() >= 7, "the tuner, three trials and the other commands recorded"


def test_the_record_has_what_a_process_does(connections: Connections) -> None:
    """The address is of a network that is reserved for documentation."""
    code = "import socket; link = socket.socket(); link.setblocking(False); link.connect_ex(('192.0.2.1', 9))"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert "socket.connect 192.0.2.1" in connections.read()
