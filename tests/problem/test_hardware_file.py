"""A job may name a hardware file of its own, which its study then stores."""

import json
from pathlib import Path

import pytest

from oppa.cost.hardware import hardware_of, load_hardware
from oppa.errors import InputError
from oppa.problem.job import load_job
from oppa.problem.problem import Problem

JOB = """
model = {preset = "tiny-4m"}
batch = {global_batch = 16}
cluster = {devices_per_host = 4, device = "my chip", CLUSTER}
runner = {name = "torch"}
space = {parameters = {schedule = "1f1b", recompute = "none"}}
"""
FILE = """
devices_per_host = 4
memory = {bytes = 10e9, bandwidth_bytes_per_s = 2e12, source = "s"}
matmul_flops_per_s = {fp32 = 20e12, source = "s"}
intra_host = {bandwidth_bytes_per_s = 3e11, latency_s = 1e-6, source = "s"}
inter_host = {bandwidth_bytes_per_s = 25e9, latency_s = 1e-5, source = "s"}
"""


@pytest.fixture
def load(tmp_path):
    """The problem of a job whose folder has `measured.toml`, with these keys of [cluster]."""

    def load_(keys: str, *, file: str = FILE) -> Problem:
        (tmp_path / "job.toml").write_text(JOB.replace("CLUSTER", keys))
        (tmp_path / "measured.toml").write_text(file)
        return load_job(tmp_path / "job.toml")

    return load_


def test_the_file_s_path_is_relative_to_the_job_s_folder(load) -> None:
    cluster = load('hardware = "measured.toml"').cluster
    assert cluster.hardware and cluster.hardware.name == "measured"
    assert (cluster.memory_limit_bytes, cluster.usable_bytes) == (10**10, 9 * 10**9)
    assert hardware_of(cluster).matmul_peak("bf16") == 20e12


def test_an_id_of_the_catalogue_lends_its_figures_to_another_device(load) -> None:
    found, known = hardware_of(load('memory_limit = "70 GiB", hardware = "H100"').cluster), load_hardware("H100")
    assert found.matmul_flops_per_s == known.matmul_flops_per_s and found.usable_bytes == 70 * 2**30


def test_a_stored_problem_needs_the_file_no_more(load, tmp_path: Path) -> None:
    problem = load('hardware = "measured.toml"')
    (tmp_path / "measured.toml").unlink()
    again = Problem.from_dict(json.loads(json.dumps(problem.to_dict())))
    assert again.cluster == problem.cluster and hardware_of(again.cluster) == hardware_of(problem.cluster)


def test_figures_of_the_prior_are_no_part_of_a_problem_s_fingerprint(load) -> None:
    keys = 'memory_limit = "5 GiB", hardware = "measured.toml"'
    prints = {
        load(keys).fingerprint,
        load(keys, file=FILE.replace("20e12", "30e12")).fingerprint,
        load('memory_limit = "5 GiB"').fingerprint,
    }
    assert len(prints) == 1


@pytest.mark.parametrize(
    ("keys", "file", "message"),
    [
        ('hardware = "none.toml"', FILE, "none.toml` does not exist"),
        ('hardware = "H1000"', FILE, "`H1000` is not one of the priors/hardware"),
        ('hardware = "measured.toml"', "a = = 1", "`measured.toml` is not TOML"),
        ('hardware = "measured.toml"', FILE.replace("10e9", "0"), r"`measured.toml`, \[memory\]: `bytes = 0` is too small"),
    ],
)
def test_a_missing_or_wrong_file_is_named(keys, file, message, load) -> None:
    with pytest.raises(InputError, match=message):
        load(keys, file=file)
