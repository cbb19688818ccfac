"""A file that is written atomically is whole or absent, has its mode from the beginning, and leaves no draft."""

import ast
import multiprocessing
import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from oppa import catalog
from oppa.atomic_write import draft_beside, write_atomically
from tests.ending import join


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_as_a_whole_and_no_draft_is_left(durable, tmp_path) -> None:
    for body in (b"first, and longer", b"second", b""):
        write_atomically(tmp_path / "file", body, durable=durable)
        assert (tmp_path / "file").read_bytes() == body
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_public_file_has_the_mode_of_any_file_and_a_private_one_is_its_owners(tmp_path) -> None:
    (tmp_path / "usual").write_bytes(b"")
    (tmp_path / "private").write_bytes(b"")  # others may read it until it is replaced
    write_atomically(tmp_path / "public", b"")
    write_atomically(tmp_path / "private", b"", private=True)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes["public"] == modes["usual"] and modes["private"] == 0o600


def test_an_exclusive_write_never_replaces(tmp_path) -> None:
    write_atomically(tmp_path / "file", b"first", exclusive=True)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "file", b"second", exclusive=True)
    assert (tmp_path / "file").read_bytes() == b"first" and len(list(tmp_path.iterdir())) == 1


def test_a_block_that_fails_keeps_the_earlier_file(tmp_path) -> None:
    write_atomically(tmp_path / "file", b"first")
    with pytest.raises(ValueError, match="half"), draft_beside(tmp_path / "file") as draft:
        draft.write_bytes(b"sec")
        raise ValueError("half")
    assert (tmp_path / "file").read_bytes() == b"first" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("path", ["no/such/folder", "file/file", "folder"])
def test_what_cannot_be_written_is_an_os_error_and_leaves_nothing(path, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_atomically(tmp_path / path, b"body")
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["file", "folder"]


def test_threads_that_write_one_file_at_the_same_time_leave_the_whole_text_of_one(tmp_path) -> None:
    texts = [bytes([65 + number]) * 5000 for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda text: write_atomically(tmp_path / "file", text, durable=False), texts * 20))
    assert (tmp_path / "file").read_bytes() in texts and len(list(tmp_path.iterdir())) == 1


def test_a_writer_that_dies_before_the_rename_leaves_the_earlier_file(tmp_path) -> None:
    write_atomically(tmp_path / "file", b"first")
    victim = multiprocessing.get_context("fork").Process(target=_write_and_die, args=(tmp_path / "file",), daemon=True)
    victim.start()
    join(victim)
    assert victim.exitcode == 9 and (tmp_path / "file").read_bytes() == b"first"


def _write_and_die(path) -> None:
    sys.addaudithook(lambda event, _: os._exit(9) if event == "os.rename" else None)
    write_atomically(path, b"second")


RENAMES = {
    "oppa/atomic_write.py": "the one draft of files",
    "oppa/table/files.py": "two files that change together",
    "oppa/training/checkpoint/storage.py": "a folder",
    "oppa/cluster/elastic_jobs/spool.py": "a folder",
    "oppa/study/open_file.py": "a file that is set aside",
}


def renames(tree: ast.Module) -> bool:
    """Return whether a module has a statement `path.replace(name)` or `path.rename(name)`; the value of those of texts is used."""
    calls = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    return any(isinstance(call.func, ast.Attribute) and call.func.attr in ("replace", "rename") for call in calls)


@pytest.mark.slow
def test_no_other_module_writes_drafts_of_its_own() -> None:
    root = catalog.root()
    files = [file for folder in ("oppa", "experiments") for file in sorted((root / folder).rglob("*.py"))]
    assert {str(file.relative_to(root)) for file in files if renames(ast.parse(file.read_text()))} == RENAMES.keys()
