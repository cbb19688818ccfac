"""Elastic jobs as folders of a spool."""

from pathlib import Path

import pytest

from oppa.cluster.elastic_jobs.spool import JOB, META, ElasticJob, folders
from oppa.errors import InputError, RunError, TableError
from oppa.pipeline.registry import build_schedule
from oppa.pipeline.stored_schedules import store, stored
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from tests.cluster.spools import JOB_FILE, put


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
        ({"name": "../up"}, "is not a valid name"),
        ({"hosts": 3}, "not in the scale table"),
    ):
        with pytest.raises(InputError, match=said) as refusal:
            put(scales, **values)
        assert refusal.value.hint
    assert [folder.name for folder in folders(scales.parent / "spool")] == ["mine"]
    (scales.parent / "job.toml").write_text(JOB_FILE.replace("global_batch = 8", "global_batch = 16"))
    with pytest.raises(InputError, match="no sizes of whole hosts"):
        put(scales, name="other")
    (scales.parent / "job.toml").write_text(JOB_FILE.replace("tiny-1m", "tiny-4m"))
    with pytest.raises(TableError, match="for another model"):
        put(scales, name="other")
    with pytest.raises(InputError, match="is not a spool"):
        folders(scales.parent / "nothing")


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
