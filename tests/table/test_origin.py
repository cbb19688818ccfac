"""A table holds for the job, the machine and the versions that it was made with, and for no other."""

import dataclasses

import pytest

from oppa.errors import TableError
from oppa.problem.cluster import Link
from oppa.table import HardwareFingerprint
from oppa.table.origin import decisive
from tests.table.conftest import HERE


@pytest.fixture
def made(table):
    """The table, made on `HERE`."""
    return dataclasses.replace(table, origin=dataclasses.replace(table.origin, hardware=HERE))


def changed(problem, part, **values):
    return dataclasses.replace(problem, **{part: dataclasses.replace(getattr(problem, part), **values)})


def with_origin(table, **values):
    return dataclasses.replace(table, origin=dataclasses.replace(table.origin, **values))


def test_it_holds_where_it_was_made(table, problem) -> None:
    table.require_for(problem)


def test_it_holds_for_other_batches_limits_and_names(made, problem) -> None:
    other = changed(changed(problem, "limits", trials=3), "stated_model", name="by another name")
    other = dataclasses.replace(changed(other, "training", learning_rate=1.0, seed=9), name="another", global_batch=64)
    made.require_for(other, here=HERE)


@pytest.mark.parametrize(
    ("part", "values", "said"),
    [
        ("stated_model", {"layers": 3}, r"`model.layers = \d+`, but this job has 3"),
        ("stated_model", {"seq_len": 7}, r"`model.seq_len = \d+`, but this job has 7"),
        ("training", {"precision": "bf16"}, '`training.precision = "fp32"`, but this job has "bf16"'),
        ("training", {"optimizer": "sgd"}, '`training.optimizer = .*`, but this job has "sgd"'),
        ("stated_model", {"entry_point": "/there:mine:Model"}, '`model.entry_point = ""`, but this job has "mine:Model"'),
        ("cluster", {"devices_per_host": 4}, "`cluster.devices_per_host = 2`, but this job has 4"),
        ("cluster", {"memory_limit_bytes": 5}, "`cluster.memory_limit_bytes = 104857600`, but this job has 5"),
        ("cluster", {"cpus_per_device": 0.5}, "`cluster.cpus_per_device = null`, but this job has 0.5"),
        ("cluster", {"intra_host": Link(bandwidth_bytes_per_s=1.0, latency_s=1.0)}, "`cluster.intra_host = null`"),
    ],
)
def test_a_table_of_another_job_is_foreign(made, problem, part, values, said) -> None:
    with pytest.raises(TableError, match=said) as caught:
        made.require_for(changed(problem, part, **values), here=HERE)
    assert "foreign" in caught.value.message and "oppa profile" in caught.value.hint


def test_a_module_of_ones_own_may_lie_elsewhere(table, problem) -> None:
    here, there = (changed(problem, "stated_model", entry_point=f"/{folder}:mine:Model") for folder in ("here", "there"))
    of_it = with_origin(table, problem=decisive(here), hardware=HERE)
    of_it.require_for(there, here=HERE)


def test_a_table_of_another_runner_is_foreign(made, problem) -> None:
    with pytest.raises(TableError, match='`runner = "torch"`, but this job has "deepspeed"'):
        made.require_for(dataclasses.replace(problem, runner=problem.runner.with_name("deepspeed")), here=HERE)


@pytest.mark.parametrize("other", [{"cpu": "another"}, {"cores": 4.0}, {"gpu": "H100", "gpus": 1}])
def test_a_table_of_another_machine_is_foreign(made, problem, other) -> None:
    with pytest.raises(TableError, match=r"foreign: it was measured on 2 cores of a processor, but this machine is \d cores of a"):
        made.require_for(problem, here=dataclasses.replace(HERE, **other))


def test_more_memory_or_more_gpus_of_a_kind_make_no_other_machine() -> None:
    gpus = dataclasses.replace(HERE, gpu="H100", gpus=4)
    assert gpus.is_like(dataclasses.replace(gpus, gpus=8, memory_bytes=1))


@pytest.mark.parametrize(("name", "version"), [("torch", "2.12.0"), ("oppa", "0.0.9"), ("oppa", "1.1.0")])
def test_a_table_of_another_version_is_stale(made, problem, name, version) -> None:
    old = with_origin(made, versions={**made.origin.versions, name: version})
    with pytest.raises(TableError, match=f"stale: it was made with {name} {version}, but .* is installed"):
        old.require_for(problem, here=HERE)


def test_a_patch_of_oppa_or_another_python_makes_no_table_stale(made, problem) -> None:
    major_minor = ".".join(made.origin.versions["oppa"].split(".")[:2])
    with_origin(made, versions={**made.origin.versions, "oppa": f"{major_minor}.99", "python": "4.0"}).require_for(problem, here=HERE)


def test_simulated_trials_are_as_fast_on_any_machine_with_any_torch(made, problem) -> None:
    simulated = with_origin(made, hardware=None, versions={**made.origin.versions, "torch": "1.0"})
    simulated.require_for(problem, here=HERE)


def test_a_process_outside_a_larger_cluster_is_not_asked_for_its_machine(made, problem) -> None:
    hosts = changed(problem, "cluster", hosts=2)
    large = with_origin(made, problem={**made.origin.problem, "cluster": {**made.origin.problem["cluster"], "hosts": 2}})
    large.require_for(hosts, here=dataclasses.replace(HERE, cpu="a login node's"))


def test_this_machine_is_identified_by_the_kernel(tmp_path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1024 kB\n")
    assert HardwareFingerprint.here(tmp_path).cpu and HardwareFingerprint.here(tmp_path).memory_bytes == 2**20
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\nmodel name\t: Some: CPU\n")
    assert HardwareFingerprint.here(tmp_path).cpu == "Some: CPU"
