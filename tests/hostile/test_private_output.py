"""Only the owner can read what programs print, and change what oppa starts later, whatever the umask."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from oppa.cluster.elastic_jobs.controller import ClusterController
from oppa.cluster.elastic_jobs.spool import JOB, LOG, ElasticJob, folders, job_of
from oppa.cluster.elastic_jobs.supervisor import start_supervisor
from oppa.cluster.scaling import Settings
from oppa.errors import InputError
from oppa.training.run.run_folder import new_attempt
from oppa.trials.guarded_process import GuardedProcess
from oppa.trials.trial import prepare
from tests.cluster.conftest import scales  # noqa: F401 - a fixture
from tests.cluster.spools import InMemoryScheduler, put
from tests.table.conftest import origin, problem  # noqa: F401 - fixtures
from tests.trials.conftest import script_spec

NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


@pytest.fixture(autouse=True)
def _open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    """The permissions of a file or a folder."""
    return stat.S_IMODE(path.stat().st_mode)


def test_a_trial_s_folder_is_the_owner_s_alone_also_if_an_older_oppa_made_it(tmp_path: Path) -> None:
    older = tmp_path / "trials" / "0002"
    older.mkdir(parents=True)
    for folder in (tmp_path / "trials" / "0001", older):
        prepare(folder, script_spec())
        assert mode(folder) == 0o700


def test_an_attempt_s_folder_is_the_owner_s_alone(tmp_path: Path) -> None:
    assert mode(new_attempt(tmp_path)) == 0o700


def test_a_log_of_oppa_is_the_owner_s_alone(tmp_path: Path) -> None:
    log = tmp_path / "tuner1.log"
    GuardedProcess("a tuner", ["echo", "a secret"], environment=os.environ, grace_s=1, log=log).close()
    assert mode(log) == 0o600


def test_a_study_s_caches_are_the_owner_s_alone(tmp_path: Path) -> None:
    (tmp_path / "caches").mkdir()  # of an older oppa
    prepare(tmp_path / "trials" / "0001", script_spec())
    assert mode(tmp_path / "caches") == 0o700


def test_an_elastic_job_and_a_new_spool_are_the_owner_s_alone(scales: Path) -> None:  # noqa: F811
    job = put(scales)
    assert mode(job.folder) == mode(job.folder.parent) == 0o700


@pytest.mark.slow
def test_a_job_of_an_older_oppa_is_closed_when_it_is_trained(scales: Path) -> None:  # noqa: F811
    job = put(scales)
    job.folder.chmod(0o777)
    (job.folder / JOB).write_text("no job")  # its training ends at once
    start_supervisor(job, 1, ()).wait(timeout=120)
    assert mode(job.folder) == 0o700 and mode(job.folder / LOG) == 0o600


@as_root
@pytest.mark.parametrize("command", [["cat"], ["touch"], ["rm", "-f"]], ids=["cat", "touch", "rm"])
def test_another_user_reads_and_changes_nothing_of_a_job_and_of_caches(
    command: list[str],
    scales: Path,  # noqa: F811
    open_to_all: Path,
) -> None:
    job = put(scales)
    (job.folder / LOG).touch()
    shutil.copytree(job.folder.parent, open_to_all / "spool")
    prepare(open_to_all / "study" / "trials" / "0001", script_spec())
    (open_to_all / "study" / "caches" / "kernel.so").touch()
    found = sorted(path for folder in ("spool", "study") for path in (open_to_all / folder).rglob("*") if path.is_file())
    (open_to_all / "spool").chmod(0o777)  # as an administrator may have made it
    tried = [subprocess.run([*command, path], user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True) for path in found]
    assert {JOB, LOG, "kernel.so"} <= {path.name for path in found} and all(path.exists() for path in found)
    assert all(each.returncode != 0 and b"ermission denied" in each.stderr for each in tried)


@as_root
@pytest.mark.parametrize("readable", [True, False])
def test_a_job_that_another_user_put_into_the_spool_is_not_trained(readable: bool, scales: Path) -> None:  # noqa: F811
    theirs, ours = put(scales, name="theirs"), put(scales, name="ours")
    os.chown(theirs.folder, NOBODY, NOBODY)
    theirs.folder.chmod(0o755 if readable else 0o700)
    scheduler, said = InMemoryScheduler(idle=4), list[str]()
    controller = ClusterController(ours.folder.parent, scheduler, Settings(), launch_s=0.0, tell=said.append)
    controller.step()
    assert [name for name, _ in scheduler.starts] == ["ours"] and controller.damaged == ["theirs"]
    assert any(f"belongs to user {NOBODY}" in each for each in said)
    for refused in (lambda: job_of(ours.folder.parent, "theirs"), lambda: ElasticJob.read(theirs.folder)):
        with pytest.raises(InputError, match=f"belongs to user {NOBODY}"):
            refused()


@as_root
def test_a_job_that_the_user_cannot_enter_hides_no_other_job(scales: Path, open_to_all: Path) -> None:  # noqa: F811
    spool = open_to_all / "spool"
    shutil.copytree(put(scales, name="of-root").folder, spool / "of-root")
    shutil.copytree(put(scales, name="mine").folder, spool / "mine")
    for path in (spool / "mine", *(spool / "mine").iterdir()):
        os.chown(path, NOBODY, NOBODY)
    spool.chmod(0o755)
    os.setresuid(NOBODY, NOBODY, 0)  # as root it could enter every folder
    try:
        assert [folder.name for folder in folders(spool)] == ["mine", "of-root"]
        assert job_of(spool, "mine").hosts == 1
        with pytest.raises(InputError, match="belongs to user 0"):
            job_of(spool, "of-root")
    finally:
        os.setresuid(0, 0, 0)
