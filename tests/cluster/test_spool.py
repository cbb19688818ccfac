"""Elastic jobs as folders of a spool."""

import dataclasses
import errno
from pathlib import Path

import pytest

from oppa.cluster.elastic_jobs.spool import JOB, META, ElasticJob, folders, submit
from oppa.errors import InputError, JobError, RunError, TableError
from oppa.pipeline.registry import build_schedule
from oppa.pipeline.stored_schedules import store, stored
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.table import Origin, Table
from oppa.table.origin import decisive
from tests.cluster.spools import JOB_FILE, put
from tests.table.conftest import row


def test_a_job_is_kept_with_its_sizes(scales: Path) -> None:
    taken = put(scales, hosts=2, name="mine")
    assert taken.hosts == 2 == taken.desired().hosts and not taken.supervised() and taken.start() is None and not taken.ending()
    assert [(size.gpus, round(size.speedup, 3)) for size in taken.table.sizes] == [(1, 0.667), (2, 1.0), (4, 1.667)]
    assert taken.sizes[4].pp == 8 and (taken.folder / JOB).read_text() == JOB_FILE
    assert [ElasticJob.read(folder) for folder in folders(scales.parent / "spool")] == [taken]
    taken.set_desired(hosts=4)
    assert taken.desired().hosts == 4
    (taken.folder / "wanted.json").write_text("{")
    assert taken.desired().hosts == 2  # as it asked for


def test_searched_orders_of_its_sizes_come_with_a_job(scales: Path) -> None:
    searched = Configuration(dp=1, pp=4, global_batch=8, micro_batch=1, schedule="search")
    assert not (put(scales, name="without").folder / "orders").exists()
    store(scales, searched, build_schedule("1f1b", ranks=4, micro_batches=8))
    assert stored(put(scales).folder, searched) == stored(scales, searched)


def test_what_cannot_be_kept_is_refused(scales: Path) -> None:
    put(scales, name="mine")
    for values, said in (
        ({"name": "mine"}, "a job named `mine` exists"),
        ({"name": "../up"}, "is not a valid job name"),
        ({"hosts": 3}, "not in the scale table"),
    ):
        with pytest.raises(InputError, match=said) as refusal:
            put(scales, **values)
        assert refusal.value.hint
    assert [folder.name for folder in folders(scales.parent / "spool")] == ["mine"]
    (scales.parent / "job.toml").write_text(JOB_FILE.replace("global_batch = 8", "global_batch = 16"))
    with pytest.raises(InputError, match=r"no sizes of whole hosts of .* at a batch of .*; its batch is 8"):
        put(scales, name="other")
    (scales.parent / "job.toml").write_text(JOB_FILE.replace("tiny-1m", "tiny-4m"))
    with pytest.raises(TableError, match="for another model"):
        put(scales, name="other")
    with pytest.raises(InputError, match="is not a spool"):
        folders(scales.parent / "nothing")


LINE = ("python", "train.py", "--micro-batch", "{micro_batch}")


@pytest.fixture
def own_scales(scales: Path) -> Path:
    """The scale table of a launch line, in place of that of the built-in trainer."""
    job = scales.parent / "job.toml"
    job.write_text(JOB_FILE.replace('runner = {name = "torch"}', "space = {parameters = {micro_batch = [2]}}"))
    rows = tuple(row(dp=dp, micro_batch=2, steps_per_s=float(dp)) for dp in (2, 4, 8))
    facts = {"study": "s", "method": "active", "complete": True, "candidates": 1, "trials": 1, "spent_s": 1.0, "created_at": 1.0}
    Table(rows=rows, origin=Origin.of(load_job(job, argv=LINE), **facts)).write(scales)  # type: ignore[arg-type]
    return scales


def test_a_launch_line_is_kept_with_the_folder_that_it_starts_in(own_scales: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    taken = put(own_scales, command=LINE)
    assert (taken.command, taken.is_own, taken.directory) == (LINE, True, tmp_path)
    assert ElasticJob.read(taken.folder) == taken and [*taken.sizes] == [1, 2, 4]


def test_a_scale_table_of_another_program_is_refused(own_scales: Path) -> None:
    with pytest.raises(TableError, match=r"for another program: it was made with `command.argv = .*train.py.* has .*other.py") as refusal:
        put(own_scales, command=("python", "other.py", "--micro-batch", "{micro_batch}"))
    assert "oppa scale-table" in refusal.value.hint and not (own_scales.parent / "spool").exists()


def test_a_launch_line_for_one_host_is_refused_if_the_scale_table_has_more(own_scales: Path) -> None:
    job, line = own_scales.parent / "job.toml", ("torchrun", "--standalone", *LINE[1:])
    job.write_text(job.read_text().replace("hosts = 2, ", ""))
    table = Table.read(own_scales)
    own = dataclasses.replace(table.origin, problem=decisive(load_job(job, argv=line)))
    Table(rows=table.rows[:1], origin=own).write(own_scales)
    assert [*put(own_scales, command=line).sizes] == [1]
    Table(rows=table.rows, origin=own).write(own_scales)
    with pytest.raises(JobError, match="one host alone, and the job runs on up to 4 hosts") as refusal:
        put(own_scales, command=line, name="other")
    assert "remove `--standalone`" in refusal.value.hint


def test_a_launch_line_that_is_left_out_is_another_program(own_scales: Path) -> None:
    with pytest.raises(TableError, match=r"for another program: .* `python train.py --micro-batch .*this job has none") as refusal:
        put(own_scales)
    assert refusal.value.hint == "repeat the launch line after `--`"


def test_a_missing_scale_table_is_made_by_its_own_command(scales: Path) -> None:
    with pytest.raises(TableError, match="does not contain a table") as refusal:
        submit(scales.parent / "spool", scales.parent / "job.toml", scales.parent / "nothing")
    assert "oppa scale-table JOB" in refusal.value.hint


def test_a_job_whose_files_are_next_to_it_is_refused(own_scales: Path) -> None:
    job = own_scales.parent / "job.toml"
    (own_scales.parent / "settings.json").write_text("{}")
    job.write_text(job.read_text() + '[command.files.settings]\npath = "settings.json"\nkeys = {size = "{micro_batch}"}\n')
    line = (*LINE, "{settings}")
    table = Table.read(own_scales)
    Table(rows=table.rows, origin=dataclasses.replace(table.origin, problem=decisive(load_job(job, argv=line)))).write(own_scales)
    with pytest.raises(InputError, match="relative to its folder") as refusal:
        put(own_scales, command=line)
    assert "absolute paths" in refusal.value.hint and not list((own_scales.parent / "spool").iterdir())


def test_a_table_that_was_altered_is_noticed(scales: Path) -> None:
    taken = put(scales)
    taken.require_unchanged_table()
    (scales / META).write_text((scales / META).read_text().replace('"csv_sha256": "', '"csv_sha256": "0'))
    with pytest.raises(TableError, match="has changed"):
        taken.require_unchanged_table()
    (taken.folder / "elastic.json").write_text("{}")
    with pytest.raises(RunError, match="damaged"):
        ElasticJob.read(taken.folder)


def test_other_hosts_are_another_problem(scales: Path) -> None:
    job = scales.parent / "job.toml"
    assert load_job(job).cluster.devices == 4 and load_job(job, settings=["cluster.hosts=1"]).cluster.devices == 2
    assert load_job(job, settings=["cluster.hosts=4"]).space.facts["devices"] == 8


def test_a_file_system_that_is_away_for_a_moment_changes_no_decision(scales: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(path: Path) -> object:
        raise OSError(errno.ESTALE, "Stale file handle")

    taken = put(scales)
    taken.set_desired(hosts=4)
    monkeypatch.setattr("oppa.cluster.elastic_jobs.spool.read_json", stale)
    with pytest.raises(OSError, match="Stale"):
        taken.set_desired(launches=1)
    monkeypatch.undo()
    assert taken.desired().hosts == 4


def test_a_job_has_one_token_on_all_paths_to_its_spool(scales: Path, tmp_path: Path) -> None:
    taken = put(scales)
    (tmp_path / "link").symlink_to(taken.folder.parent)
    assert ElasticJob.read(tmp_path / "link" / taken.name).token == taken.token
