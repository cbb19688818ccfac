"""Bad files and bad disks: a clear error, and nothing is lost."""

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest

from oppa.errors import StudyError
from oppa.problem.configuration import Configuration
from oppa.study import Study, database
from oppa.trials.file_systems import file_system

A = Configuration(dp=2, global_batch=8, micro_batch=1)


def test_a_folder_without_a_study_says_so(tmp_path) -> None:
    with pytest.raises(StudyError, match="is not a study folder") as refused:
        Study(tmp_path)
    assert "oppa tune" in refused.value.hint


def test_a_folder_of_studies_names_them(tmp_path) -> None:
    for number in range(8):
        (tmp_path / f"job-{number}").mkdir()
        (tmp_path / f"job-{number}" / database.FILE).touch()
    with pytest.raises(StudyError, match="is not a study folder") as refused:
        Study(tmp_path)
    assert refused.value.hint == "name one of its studies: job-0, job-1, job-2, job-3, job-4, job-5, ..."


@pytest.mark.parametrize("name", database.OF_A_STUDY)
def test_a_new_study_replaces_nothing(tmp_path, name) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "mine").touch()
    with pytest.raises(StudyError, match=f"holds `{name}`, but no study"):
        Study.create(tmp_path, {"name": "a problem"}, "fingerprint")
    assert [each.name for each in tmp_path.rglob("*")] == [name, "mine"]


@pytest.mark.parametrize("keep", [0, 10, 100, 5000, 9000])
def test_a_truncated_file_is_an_error_with_a_hint(study, completed, keep) -> None:
    study.finish(study.claim(A), completed)
    study.close()
    path = study.folder / database.FILE
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(StudyError) as caught:
        Study(study.folder)
    assert caught.value.hint


def test_a_file_of_another_program_is_refused(tmp_path) -> None:
    with sqlite3.connect(tmp_path / database.FILE) as connection:
        connection.execute("CREATE TABLE other (x)")
    connection.close()
    with pytest.raises(StudyError, match="not a study of oppa"):
        Study(tmp_path)


def test_a_full_disk_loses_nothing_that_was_acknowledged(study, completed) -> None:
    study.finish(study.claim(A), completed)
    pages = study._connection.execute("PRAGMA page_count").fetchone()[0]
    study._connection.execute(f"PRAGMA max_page_count={pages}")  # SQLite's own "database or disk is full"
    with pytest.raises(StudyError, match="full") as caught:
        for size in range(1, 100):
            study.claim(Configuration(dp=size, global_batch=8, micro_batch=1))
    assert "free some disk space" in caught.value.hint
    study._connection.execute("PRAGMA max_page_count=100000")
    assert [trial.configuration for trial in study.trials()] == [A]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError):
        Study.create(tmp_path / "file" / "study", {}, "f")


def test_a_new_file_has_its_journal_so_that_no_two_tuners_switch_it(tmp_path) -> None:
    database.create(tmp_path, {"host": "a"})
    with contextlib.closing(sqlite3.connect(tmp_path / database.FILE)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert [path.name for path in tmp_path.iterdir()] == [database.FILE]


def test_the_file_system_is_that_of_the_innermost_mount(tmp_path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"root / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n")
    assert file_system(tmp_path / "study", mounts) == "nfs4"
    assert file_system(tmp_path.parent, mounts) == "ext4"


def test_a_mount_may_have_any_name(tmp_path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_bytes(b"root / ext4 rw 0 0\nusb /media/\xfcber vfat rw 0 0\n" + rb"server:/x /net/a\040b\134c nfs4 rw 0 0")
    assert file_system(tmp_path, mounts) == "ext4"
    assert file_system(Path(os.fsdecode(b"/media/\xfcber/study")), mounts) == "vfat"
    assert file_system(Path("/net/a b\\c/study"), mounts) == "nfs4"


def test_on_a_network_file_system_one_host_works_on_the_file(tmp_path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/x {tmp_path} nfs4 rw 0 0\n")
    with Study.create(tmp_path / "study", {}, "f") as study:
        lease = study.claim(A)
    with contextlib.closing(database.connect(study.folder, host=study.meta["host"], mounts=mounts)) as owner:
        assert owner.execute("PRAGMA journal_mode").fetchone()[0] == "delete"
    with pytest.raises(StudyError, match=f"the host `{study.meta['host']}` uses it, not `another`"):
        database.connect(study.folder, host="another", mounts=mounts)
    with Study(study.folder) as study:
        study.interrupt(lease, "enough")
    with contextlib.closing(database.connect(study.folder, host="another", mounts=mounts)) as heir:
        assert database.meta_of(heir)["host"] == "another"
