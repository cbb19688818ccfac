"""Which jobs are elastic, and how those scale that FlexTrain has published."""

import dataclasses
from pathlib import Path

import pytest

from oppa.cluster.elastic import Elasticity, elastic, of_table
from oppa.cluster.generator import PRETRAIN, SEREN, generate
from oppa.cluster.job import ScaleTable, TraceJob
from oppa.cluster.models import LARGE, MEDIUM, MODELS, SMALL, Division, PublishedModel, entries, job_of, table_of
from oppa.errors import InputError, TableError
from oppa.table import Origin, Table
from tests.sampling import nightly
from tests.table.conftest import origin, problem, row  # noqa: F401 - fixtures

KINDS = {gpus: Elasticity(table=ScaleTable.of(gpus, [(2 * gpus, 1.8)]), save_s=1.0, start_s=2.0) for gpus in (64, 256)}


def test_a_share_of_pretraining_is_elastic() -> None:
    jobs = generate(SEREN, days=10, seed=0)
    pretraining = [job for job in jobs if job.kind == PRETRAIN]
    few, more, all_ = (elastic(jobs, share, KINDS, seed=0) for share in (0.1, 0.3, 1.0))
    chosen = [{job.name for job in found if job.table} for found in (few, more, all_)]
    assert len(chosen[0]) == round(0.1 * len(pretraining)) and chosen[0] < chosen[1] < chosen[2]
    assert chosen[2] == {job.name for job in pretraining if job.gpus in KINDS}
    assert [dataclasses.replace(job, table=None, save_s=0.0, start_s=0.0) for job in more] == jobs
    assert {job.overhead_s for job in more if job.table} == {3.0}
    with pytest.raises(InputError, match="is not a share"):
        elastic(jobs, 1.1, KINDS)


def test_the_published_models_begin_with_the_published_gpus() -> None:
    assert [model.gpus for model in MODELS] == [32, 64, 256]


@pytest.mark.slow
@pytest.mark.parametrize("model", [SMALL, *nightly(MEDIUM)], ids=lambda model: model.name)
def test_more_gpus_are_faster_and_replicas_faster_than_stages_alone(model: PublishedModel) -> None:
    alone, both = (table_of(model, replicas=replicas) for replicas in (False, True))
    for table in (alone, both):
        speedups = [size.speedup for size in table.sizes]
        assert speedups == sorted(speedups) and speedups[0] == 1.0 and table.sizes[-1].gpus <= 4 * model.gpus
    assert 1.5 < alone.sizes[-1].speedup < both.sizes[-1].speedup < 5
    assert all(entry.best.dp == model.dp for entry in entries(model, replicas=False))


@pytest.mark.slow
def test_the_small_one_scales_with_stages_alone_as_far_as_its_table_has_it() -> None:
    """Table 2: 32 to 128 GPUs. A whole prediction head is worth five layers, and was as fast as a pipeline got."""
    largest = {division: table_of(SMALL, replicas=False, division=division).sizes[-1] for division in Division}
    assert largest[Division.WHOLE].gpus < largest[Division.LOSSES].gpus < largest[Division.SLICES].gpus == 128
    assert largest[Division.WHOLE].speedup < largest[Division.LOSSES].speedup < largest[Division.SLICES].speedup
    assert largest[Division.SLICES].speedup > 3.5


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_however_a_model_is_divided_it_computes_the_same(model: PublishedModel) -> None:
    totals = {division: sum(job_of(model, division).profile.costs) for division in Division}
    assert totals[Division.LOSSES] == pytest.approx(totals[Division.WHOLE]) == pytest.approx(totals[Division.SLICES])
    slices = job_of(model, Division.SLICES).profile
    heads = [cost for cost, letter in zip(slices.costs, slices.chain, strict=True) if letter == "L"]
    assert max(heads) <= slices.costs[1]


def test_the_large_one_has_no_more_stages_than_layers() -> None:
    assert LARGE.pp * 4 <= LARGE.layers


def test_a_table_of_one_s_own(origin: Origin, tmp_path: Path) -> None:  # noqa: F811
    rows = tuple(row(dp=1, pp=pp, steps_per_s=rate, trials=()) for pp, rate in ((2, 1.0), (4, 1.5), (8, 2.5)))
    Table(rows=rows, origin=origin).write(tmp_path / "scales")
    fewest, found = of_table(tmp_path / "scales", start_s=5.0)
    assert fewest == 2 and found.start_s == 5.0
    assert [(size.gpus, size.speedup) for size in found.table.sizes] == [(2, 1.0), (4, 1.5), (8, 2.5)]
    (tmp_path / "scales" / "table.csv").write_text((tmp_path / "scales" / "table.csv").read_text().replace("1", "2", 1))
    with pytest.raises(TableError, match="edited"):
        of_table(tmp_path / "scales", start_s=5.0)
    with pytest.raises(TableError, match="does not contain a table"):
        of_table(tmp_path / "nothing", start_s=5.0)


def job(name: str, gpus: int, kind: str = PRETRAIN) -> TraceJob:
    return TraceJob(name=name, arrival_s=0.0, duration_s=60.0, gpus=gpus, kind=kind)


def test_no_job_scales_beyond_the_cluster() -> None:
    jobs = [job("a", 64), job("b", 256)]
    assert [each.table.sizes[-1].gpus for each in elastic(jobs, 1.0, KINDS, most=300) if each.table] == [128, 256]


def test_any_job_of_a_trace_without_types_may_be_elastic() -> None:
    jobs = [job("a", 64, ""), job("b", 8, "")]
    assert [each.table is not None for each in elastic(jobs, 1.0, KINDS)] == [True, False]
