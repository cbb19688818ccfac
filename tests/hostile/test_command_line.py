"""The command line refuses, by a clear error, words and streams that no command can use."""

import io
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from oppa import cli
from tests.command_line import Oppa, while_full

JOB = """
model = {preset = "tiny-4m"}
batch = {global_batch = 8}
cluster = {devices_per_host = 4, device = "H100", memory_limit = "80 GiB"}
runner = {name = "simulated"}
"""
ROWS = """\
layers,hidden,heads,kv_heads,ffn,vocab,seq_len,device,gpus,gpus_per_node,gbs,mbs,dp,tp,pp,model_chunks,zero,recompute
32,4096,32,32,11008,32000,4096,A100-80GB,8,8,64,1,8,1,1,1,1,none
"""
LONG = "a" * 300
"""A name that no file system has."""
DIGITS = "9" * 5000
"""More digits than Python turns into a number."""


@pytest.fixture
def oppa(tmp_path: Path) -> Oppa:
    (tmp_path / "job.toml").write_text(JOB)
    return Oppa(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ("report", LONG),
        ("show", LONG),
        ("verify", LONG),
        ("export", "job.toml", "dp=4,micro_batch=2", "--out", LONG),
        ("import", LONG, "--from", "deepspeed"),
        ("predict", "--rows", "job.toml", "--out", LONG),
        ("init", f"{LONG}.toml"),
        ("cluster", "status", LONG),
        ("plan", "--table", LONG, "--noise", "."),
    ],
    ids=lambda words: words[0],
)
def test_a_path_that_the_file_system_refuses_is_refused(words: tuple[str, ...], oppa: Oppa) -> None:
    assert "File name too long" in oppa(*words, code=2).stderr


@pytest.mark.parametrize(
    "words",
    [
        ("scale-table", "job.toml", "--devices", f"1..{DIGITS}"),
        ("scale-table", "job.toml", "--devices", "1..99999999999"),
        ("scale-table", "job.toml", "--devices", "4..8", "--measure", DIGITS),
        ("profile", "job.toml", "--table", "t", "--global-batch", DIGITS),
        ("export", "job.toml", f"dp{DIGITS}_tp1_pp1_z0_mbs2"),
    ],
    ids=lambda words: words[-1][:20],
)
def test_a_number_beyond_all_bounds_is_refused(words: tuple[str, ...], oppa: Oppa) -> None:
    printed = oppa(*words, code=2).stderr
    assert "hint: " in printed and len(printed) < 1_000 + len(DIGITS)


def test_a_table_in_place_of_a_number_or_a_word_is_named(oppa: Oppa) -> None:
    assert "`hosts = {}` is not a whole number" in oppa("space", "job.toml", "--set", "cluster.hosts={}", code=2).stderr


def test_a_message_quotes_no_more_than_a_screen_holds(oppa: Oppa) -> None:
    printed = oppa("explain", "job.toml", "a" * 100_000, code=2).stderr
    assert "hint: " in printed and len(printed) < 25_000


def test_an_output_in_a_narrow_encoding_is_written(oppa: Oppa, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.chdir(oppa.folder)
    monkeypatch.setattr(sys, "stdout", narrow)
    monkeypatch.setattr(sys, "argv", ["oppa", "explain", "job.toml", "dp=4"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code in (0, None) and b"dp4" in narrow.buffer.getvalue()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_an_output_on_a_full_disk_is_no_mistake_of_oppa(oppa: Oppa) -> None:
    with Path("/dev/full").open("w") as full:
        words, environment = oppa.argv("schema", "job"), oppa.environment()
        done = subprocess.run(words, cwd=oppa.folder, env=environment, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3 and "the output cannot be written: No space left on device" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("init", "full/new.toml"),
        ("tune", "job.toml", "--set", "cluster.devices_per_host=8", "--study", "full/study"),
        ("predict", "--rows", "in.csv", "--out", "full/out.csv"),
        ("export", "job.toml", "dp=4,micro_batch=2", "--to", "megatron", "--out", "full/files"),
    ],
    ids=lambda words: words[0],
)
def test_a_full_disk_is_a_lack_of_room(oppa: Oppa, words: tuple[str, ...]) -> None:
    (oppa.folder / "full").mkdir()
    (oppa.folder / "in.csv").write_text(ROWS)
    command = [*while_full(oppa.folder / "full"), *oppa.argv(*words)]
    done = subprocess.run(command, cwd=oppa.folder, env=oppa.environment(), capture_output=True, text=True)
    assert done.returncode == 3 and "error: " in done.stderr and "hint: free some space" in done.stderr, done.stderr


@pytest.mark.slow
def test_closed_streams_are_no_mistake_of_oppa(oppa: Oppa) -> None:
    words = shlex.join(oppa.argv("space", "job.toml"))
    for closed, code in ((">&-", 0), ("2>&-", 0), (">&- 2>&- <&-", 0)):
        done = subprocess.run(["sh", "-c", f"{words} {closed}"], cwd=oppa.folder, env=oppa.environment(), capture_output=True, text=True)
        assert done.returncode == code and "mistake" not in done.stderr, done.stderr
    read = subprocess.run(
        ["sh", "-c", f"{shlex.join(oppa.argv('predict', '--rows', '-'))} <&-"],
        cwd=oppa.folder,
        env=oppa.environment(),
        capture_output=True,
        text=True,
    )
    assert read.returncode == 2 and "`-` is empty" in read.stderr


def test_a_byte_order_mark_and_line_ends_of_windows_change_no_job(oppa: Oppa) -> None:
    listed = oppa("space", "job.toml").stdout
    (oppa.folder / "job.toml").write_bytes(JOB.replace("\n", "\r\n").encode("utf-8-sig"))
    assert oppa("space", "job.toml").stdout == listed


def test_no_choice_is_not_every_choice(oppa: Oppa) -> None:
    refusal = oppa("space", "job.toml", "--set", "space.parameters.zero_stage=[]", code=2).stderr
    assert "`zero_stage = []` leaves nothing to choose" in refusal


@pytest.mark.parametrize(
    ("words", "of"),
    [
        (("tune", "job.toml", "--study", ""), "the value of `--study`"),
        (("tune", "job.toml", "--study="), "the value of `--study`"),
        (("show", ""), "an argument"),
        (("init", ""), "an argument"),
    ],
)
def test_an_empty_word_does_not_name_the_present_folder(oppa: Oppa, words: tuple[str, ...], of: str) -> None:
    assert f"{of} is empty" in oppa(*words, code=2).stderr
    assert [each.name for each in oppa.folder.iterdir()] == ["job.toml"]
