"""The baseline is read from a job file, completed, checked against the space, and kept with the problem."""

import json

import pytest

from oppa.errors import InputError
from oppa.problem.baseline import at_rest, complete, loaded, require_legal, table
from oppa.problem.declaration import parse
from oppa.problem.job import load_job
from oppa.problem.problem import Problem

JOB = """
model = {preset = "tiny-4m"}
batch = {global_batch = 16}
cluster = {devices_per_host = 8, device = "H100", memory_limit = "80 GiB"}
runner = {name = "simulated"}
space.name = "deepspeed"
training = {precision = "bf16"}
"""


@pytest.fixture
def job(tmp_path):
    def load(baseline=""):
        path = tmp_path / "job.toml"
        path.write_text(f"{JOB}\n{baseline}")
        return load_job(path)

    return load


def test_what_a_table_leaves_out_follows_from_devices_and_defaults(job) -> None:
    meant = job("[baseline]\nmicro_batch = 2\ntp = 2\nzero_stage = 1").baseline
    assert (meant.dp, meant.tp, meant.pp, meant.micro_batch, meant.zero_stage, meant.zero_bucket_mb) == (4, 2, 1, 2, 1, 954)
    assert meant.global_batch == 16 and job().baseline is None


def test_the_table_of_every_candidate_means_that_candidate(job) -> None:
    problem = job()
    candidates = problem.candidates()
    for index in range(0, len(candidates), 7):
        configuration = candidates.configuration(index)
        values = parse(table(problem.space, configuration), source="", error=InputError)["baseline"]
        assert require_legal(problem.space, complete(problem.space, values)) == configuration


def test_the_json_of_every_candidate_means_that_candidate(job, tmp_path) -> None:
    problem = job()
    candidates = problem.candidates()
    for index in range(0, len(candidates), 7):
        configuration = candidates.configuration(index)
        (tmp_path / "c.json").write_text(json.dumps(configuration.to_dict()))
        assert loaded(problem.space, tmp_path / "c.json") == configuration


@pytest.mark.parametrize(
    ("baseline", "words"),
    [
        ("micro_batch = 2\ntp = 2\npp = 2", "AutoTP does not work inside a PipelineModule"),
        ("micro_batch = 2\ndp = 2", "every device runs one rank"),
        ("micro_batch = 3", "`micro_batch = 3` is not legal"),
        ("micro_batch = 2\nzero_stge = 1", "no parameter `zero_stge`"),
        ("micro_batch = 2\nzero_stage = true", "`zero_stage = true` is not legal"),
        ("micro_batch = 2\noverlap_zero_comm = true", "`overlap_zero_comm` matters only where this holds"),
        ("tp = 2", "the micro-batch is missing"),
        ("micro_batch = 2\nglobal_batch = 8", "`global_batch = 8`, but the job fixes it at 16"),
    ],
)
def test_what_is_not_in_the_space_names_what_it_violates(baseline, words, job) -> None:
    with pytest.raises(InputError, match="baseline") as caught:
        job(f"[baseline]\n{baseline}")
    assert words in caught.value.message and caught.value.hint


def test_what_the_job_does_not_search_is_no_baseline(job) -> None:
    with pytest.raises(InputError, match="the job does not search this value"):
        job("space.parameters.zero_stage = [0, 1]\n[baseline]\nmicro_batch = 2\nzero_stage = 2")


def test_what_does_not_matter_comes_to_rest_and_buckets_are_rounded(job) -> None:
    space = job().space
    loose = complete(space, {"micro_batch": 2, "zero_stage": 0, "overlap_zero_comm": True, "zero_bucket_mb": 100.0})
    assert (at_rest(space, loose).overlap_zero_comm, at_rest(space, loose).zero_bucket_mb) == (False, 954)
    assert at_rest(space, complete(space, {"micro_batch": 2, "zero_stage": 1, "zero_bucket_mb": 100.0})).zero_bucket_mb == 128


def test_a_problem_keeps_its_baseline_and_is_another_one_with_it(job) -> None:
    plain, problem = job(), job("[baseline]\nmicro_batch = 2")
    assert Problem.from_dict(problem.to_dict()) == problem and "baseline" not in plain.to_dict()
    assert problem.fingerprint != plain.fingerprint
