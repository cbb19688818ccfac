"""A measured scale table has the requested sizes as its rows."""

from pathlib import Path

import pytest

from oppa.api.profiling import profile_scales
from oppa.errors import EnvironmentLackingError, InfeasibleError, InputError, JobError
from oppa.problem.allocation import NETLAB
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.problem.problem import Problem
from oppa.table import Origin, Table, TableRow
from oppa.tuning.scale_profile import measured_sizes, problems_of, scale_entries

JOB = """
model = {preset = "tiny-1m"}
batch = {global_batch = 16}
cluster = {devices_per_host = 2, device = "CPU", memory_limit = "100 MiB"}
space = {parameters = {micro_batch = [1, 2]}}
"""


@pytest.fixture
def problems(tmp_path: Path) -> dict[int, Problem]:
    """The job of a launch line on every number of devices up to twenty."""
    (tmp_path / "job.toml").write_text(JOB)

    def on(hosts: int) -> Problem:
        return load_job(tmp_path / "job.toml", settings=[f"cluster.hosts={hosts}"], argv=("python", "train.py", "{micro_batch}"))

    return problems_of(on(1), 1, 20, on)


def tables(problems: dict[int, Problem], rates: dict[int, float], source: str = "measured") -> dict[int, Table]:
    facts = {"study": "s", "method": "active", "complete": True, "candidates": 1, "trials": 1, "spent_s": 1.0, "created_at": 1.0}
    origin = Origin.of(problems[2], **facts)  # type: ignore[arg-type]
    rows = {
        devices: TableRow(
            configuration=Configuration(dp=devices, global_batch=16, micro_batch=2),
            steps_per_s=rate,
            log_stddev=0.01,
            memory_bytes=5,
            source=source,  # type: ignore[arg-type]
        )
        for devices, rate in rates.items()
    }
    return {devices: Table(rows=(row,), origin=origin) for devices, row in rows.items()}


def test_sizes_are_whole_hosts_that_divide_the_batch(problems: dict[int, Problem]) -> None:
    assert [*problems] == [2, 4, 8, 16]
    assert [each.cluster.devices for each in problems.values()] == [2, 4, 8, 16]


def test_no_size_is_wrong_input(problems: dict[int, Problem]) -> None:
    with pytest.raises(InputError, match=r"`--devices 3..3` has no number of hosts of 2 devices"):
        problems_of(problems[2], 3, 3, lambda _: problems[2])


def test_a_launch_line_for_one_host_has_no_size_of_several(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    problem = load_job(tmp_path / "job.toml", argv=("torchrun", "--standalone", "train.py", "{micro_batch}"))
    assert [*problems_of(problem, 1, 2, lambda _: problem)] == [2]
    with pytest.raises(JobError, match="one host alone, and the job runs on up to 4 hosts"):
        problems_of(problem, 1, 8, lambda _: problem)


def test_a_batch_that_no_size_divides_is_named(problems: dict[int, Problem]) -> None:
    def refuse(hosts: int) -> Problem:
        raise JobError(f"16 sequences have no share on {hosts} hosts", hint="use 2 or 4")

    with pytest.raises(InputError, match=r"`--devices 3..9` has no number.*: 16 sequences have no share on 4 hosts") as refusal:
        problems_of(problems[2], 3, 9, refuse)
    assert refusal.value.hint == "use 2 or 4"


def test_hosts_of_every_measured_size_are_checked_before_the_first_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", NETLAB):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "job.toml").write_text(JOB)
    line = ("python", "train.py", "{micro_batch}")
    with pytest.raises(EnvironmentLackingError, match="needs 2 hosts"):
        profile_scales(tmp_path / "job.toml", devices=(1, 8), table=tmp_path / "scales", measure="2,4", command=line)
    assert not (tmp_path / "scales").exists(), "nothing was measured"


@pytest.mark.parametrize(
    ("sizes", "named", "found"),
    [([2, 4, 8, 16], "", [2, 4, 8, 16]), ([*range(2, 65, 2)], "", [2, 6, 20, 64]), ([2], "", [2]), ([2, 4, 8], "8, 2", [2, 8])],
)
def test_a_few_sizes_are_measured(sizes: list[int], named: str, found: list[int]) -> None:
    assert measured_sizes(sizes, named) == found


@pytest.mark.parametrize(
    ("named", "words"), [("3", "`3` is none of the sizes"), ("2,x", "`x` is none"), ("4", "one size predicts no others")]
)
def test_sizes_that_cannot_be_measured_are_wrong_input(named: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        measured_sizes([2, 4, 8], named)


def test_the_rest_is_predicted_with_an_error_in_a_configuration_that_is_valid(problems: dict[int, Problem]) -> None:
    found, law = scale_entries(problems, tables(problems, {2: 1.0, 4: 1.9, 8: 3.4}))
    assert law is not None and [entry.row.source for entry in found] == ["measured"] * 3 + ["predicted"]
    last = found[-1].row
    assert 3.4 < last.steps_per_s < 6.8 and last.log_stddev > 0.01
    assert (last.configuration.dp, last.configuration.micro_batch) == (16, 1), "sixteen replicas have one sample each"
    assert [entry.speedup for entry in found][:3] == [1.0, 1.9, 3.4]


def test_a_size_that_is_no_faster_is_left_out(problems: dict[int, Problem]) -> None:
    found, law = scale_entries(problems, tables(problems, {2: 1.0, 4: 0.9, 8: 1.5, 16: 1.5}))
    assert law is None and [entry.left_out for entry in found] == ["", "no faster than 2 devices", "", "no faster than 8 devices"]


@pytest.mark.slow
def test_a_size_without_a_measurement_is_an_error(problems: dict[int, Problem]) -> None:
    with pytest.raises(InfeasibleError, match="no trial on 2 devices"):
        scale_entries(problems, tables(problems, {2: 1.0, 4: 1.0}, "predicted"))
