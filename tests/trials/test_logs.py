"""A log keeps its beginning and its end, and stays under its cap."""

import pytest

from oppa.trials.logs import STDERR, folder, gather, last_words, trim
from oppa.trials.output import failure


def test_a_short_log_is_left_alone(tmp_path):
    log = tmp_path / "log"
    trim(log, cap_bytes=100)
    log.write_text("x" * 100)
    trim(log, cap_bytes=100)
    assert log.read_text() == "x" * 100


def test_a_log_over_its_cap_may_wait_for_its_writers(tmp_path):
    log = tmp_path / "log"
    log.write_text("x" * 500)
    trim(log, cap_bytes=100, over_bytes=1000)
    assert log.stat().st_size == 500
    trim(log, cap_bytes=100)
    assert log.stat().st_size < 150


def test_a_long_log_keeps_both_ends_while_it_is_written(tmp_path):
    log = tmp_path / "log"
    with log.open("a") as writer:
        writer.write("the beginning\n")
        for line in range(1000):
            writer.write(f"line {line}\n")
            writer.flush()
            trim(log, cap_bytes=1000)
        writer.write("the end\n")
    text = log.read_text()
    assert text.startswith("the beginning\n")
    assert text.endswith("line 999\nthe end\n")
    assert "bytes left out" in text
    assert len(text) <= 1100


def test_the_tail_of_no_log_is_empty(tmp_path):
    assert last_words(tmp_path / "log") == ""
    (tmp_path / "log").write_text("a" * 9000 + "\nthe end\n")
    assert last_words(tmp_path / "log").endswith("the end")


@pytest.mark.parametrize("first", [0, 1])
def test_the_reason_of_a_failure_is_found_on_whichever_of_many_hosts_it_was_printed(first, tmp_path):
    """The other hosts lost the connection to it; all of them print much."""
    for host in range(16):
        cause = "ValueError: 3 layers" if host == first else "DistBackendError: Connection closed by remote peer"
        folder(tmp_path, host).mkdir(exist_ok=True)
        (folder(tmp_path, host) / STDERR).write_text(f"{'NCCL INFO' * 50_000}\nTraceback (most recent call last):\n  File\n{cause}\n")
    gather(tmp_path, [f"n{host}" for host in range(16)])
    assert failure(tmp_path).line == "ValueError: 3 layers"
