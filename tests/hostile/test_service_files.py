"""The control service's files belong to its owner alone, and its tokens are in no log."""

import contextlib
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from oppa.control.policies.goodput import GoodputPolicy
from oppa.control.service.client import ControlClient
from oppa.control.service.journal import FILE, Journal
from oppa.control.service.tokens import SECRET, Tokens
from oppa.errors import EnvironmentLackingError, InputError
from oppa.protocol.messages import StepFacts
from tests.control.services import hello, said_to_watcher, serving, step, until
from tests.ending import end, ending


@pytest.fixture(params=["secret", "journal"])
def opened(request: pytest.FixtureRequest):
    """Opens one of the two in a folder."""
    return Tokens.of if request.param == "secret" else lambda folder: Journal(folder).close()


def test_a_new_folder_and_its_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Tokens.of(tmp_path / "control")
        journal = Journal(tmp_path / "control")
        journal.begin("a", hello("a").to_json())
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "control").iterdir()}
        journal.close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "control").stat().st_mode) == 0o700
    assert {SECRET, FILE, f"{FILE}-wal"} <= modes.keys() and set(modes.values()) == {0o600}


def test_a_journal_that_others_could_read_becomes_private(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    (tmp_path / FILE).chmod(0o644)
    Journal(tmp_path).close()
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o1777, 0o710])
def test_a_folder_that_others_can_enter_is_refused(mode: int, opened, tmp_path: Path) -> None:
    (tmp_path / "control").mkdir()
    (tmp_path / "control").chmod(mode)
    with pytest.raises(InputError, match="others may enter it") as error:
        opened(tmp_path / "control")
    assert "chmod 700" in error.value.hint and not list((tmp_path / "control").iterdir())


def test_a_link_in_place_of_the_folder_is_refused(opened, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    (tmp_path / "control").symlink_to(tmp_path / "theirs")
    with pytest.raises(InputError, match="is a link"):
        opened(tmp_path / "control")
    assert not list((tmp_path / "theirs").iterdir())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_the_folder_of_another_user_is_refused(opened, tmp_path: Path) -> None:
    (tmp_path / "control").mkdir(mode=0o700)
    os.chown(tmp_path / "control", 54321, 54321)
    with pytest.raises(InputError, match="belongs to user 54321"):
        opened(tmp_path / "control")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("command", [["cat"], ["touch"], ["flock", "--nonblock"], ["rm", "-f"]])
def test_another_user_reads_and_holds_nothing_of_it(command: list[str], open_to_all: Path) -> None:
    folder = open_to_all / "control"
    Tokens.of(folder)
    Journal(folder).close()
    found = sorted(folder.iterdir())
    rest = ["true"] if command[0] == "flock" else []
    tried = [subprocess.run([*command, path, *rest], user=65534, group=65534, extra_groups=[], capture_output=True) for path in found]
    assert found == sorted(folder.iterdir()) and len(found) >= 2
    assert all(each.returncode != 0 and b"ermission denied" in each.stderr for each in tried)


@pytest.mark.parametrize("name", [SECRET, FILE])
@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_is_no_file_is_refused_and_not_waited_for(kind: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"x" * 32)
    path = tmp_path / name
    {"link": lambda: path.symlink_to(tmp_path / "other"), "fifo": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    with pytest.raises((InputError, EnvironmentLackingError), match=name):
        (Tokens.of if name == SECRET else Journal)(tmp_path)
    assert (tmp_path / "other").read_bytes() == b"x" * 32


@pytest.mark.slow
def test_a_second_service_in_the_folder_is_refused(tmp_path: Path, table) -> None:
    with serving(tmp_path, table, GoodputPolicy):
        program = "import sys, pathlib, oppa.control.service.journal as j; j.Journal(pathlib.Path(sys.argv[1]))"
        done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True)
    assert "locked" in done.stderr and "EnvironmentLackingError" in done.stderr


@pytest.mark.slow
def test_no_log_has_a_token(tmp_path: Path, table, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "oppa")
    with serving(tmp_path, table, GoodputPolicy) as (service, port):
        tokens = [service.tokens.of_job("a-job"), service.tokens.of_watcher(), service.tokens.of_job("other")]
        for token in (tokens[0], tokens[2]):
            with ControlClient(f"127.0.0.1:{port}", token, hello()) as client:
                facts = step(1).model_dump(exclude={"number", "type"}) | {"configuration": hello().configuration}
                client.step(StepFacts(**facts))
                if token == tokens[0]:
                    until(lambda: service.taken == 1)
        caplog.set_level(logging.INFO, "websockets")  # the test's own end
        assert said_to_watcher(port, tokens[1])
        with contextlib.suppress(ConnectionClosed):
            said_to_watcher(port, tokens[0])
    assert "control service" in caplog.text and not [token for token in tokens if token in caplog.text]


@pytest.mark.parametrize("token", ["secret\n", "sec\r\nret", "sec\x1b[2Jret"])
def test_nor_one_that_no_header_can_hold(token: str, tmp_path: Path, table, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "oppa")
    with serving(tmp_path, table, GoodputPolicy) as (_, port), ControlClient(f"127.0.0.1:{port}", token, hello()):
        until(lambda: "is not reachable" in caplog.text)
    assert "sec" not in caplog.text and "ret" not in caplog.text and "\x1b" not in caplog.text


@pytest.mark.slow
def test_a_pipe_gets_the_address_of_the_live_page_without_its_token(tmp_path: Path, table) -> None:
    table.write(tmp_path / "table")
    words = [sys.executable, "-m", "oppa", "control", "--table", "table", "--port", "0"]
    with ending(subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True)) as running:
        assert running.stderr is not None
        said, file = "", tmp_path / "control" / "live-page"
        try:
            while "live page" not in said:
                said += (line := running.stderr.readline())
                assert line, said
            address, mode = file.read_text().strip(), stat.S_IMODE(file.stat().st_mode)
        finally:
            running.terminate()
        said += running.stderr.read()
        end(running)
    token = Tokens.of(tmp_path / "control").of_watcher()
    assert address.endswith(f"/#token={token}") and mode == 0o600 and address.partition("#")[0] in said
    assert token not in said and "cat control/live-page" in said and not file.exists()
