"""A proposed size is smaller and shows what may win; a stated one is obeyed; what cannot be cut is refused with a reason."""

import dataclasses

import pytest

from oppa.errors import InputError, JobError
from oppa.problem.problem import Problem
from oppa.problem.training import ProxyChoice
from oppa.tuning.proxy.choice import SHOWN, choose, promising, shown
from oppa.tuning.proxy.rung import Rung, require_cuttable
from tests.jobs import problem_of

PROGRAM = """
model = {preset = "bert-base"}
batch = {global_batch = 64}
cluster = {hosts = 4, devices_per_host = 2, device = "A5000", memory_limit = "24138 MiB"}
command = {argv = ["python", "train.py", "--mb={micro_batch}", "--tp={tp}", "--pp={pp}", "--zero={zero_stage}", EXTRA]}
"""


def stated(job: Problem, **sizes: int) -> Problem:
    return dataclasses.replace(job, proxy=ProxyChoice(**sizes))


def test_a_proposed_size_is_smaller_and_shows_what_may_win(job, full) -> None:
    proxy = choose(stated(job), full)
    assert proxy.rung.hosts < 8
    assert shown(proxy, promising(job, full)) >= SHOWN


def test_a_stated_size_is_obeyed(job, full) -> None:
    assert choose(stated(job, hosts=4, layers=6), full).rung == Rung(hosts=4, layers=6, global_batch=512)
    assert choose(stated(job, hosts=4, layers=12, global_batch=128), full).rung.global_batch == 128


def test_stated_layers_are_kept_on_a_proposed_number_of_hosts(job, full) -> None:
    rung = choose(stated(job, layers=6), full).rung
    assert rung.layers == 6 and rung.hosts < 8


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"hosts": 16}, "`proxy.hosts = 16` is above the job's 8"),
        ({"layers": 24}, "`proxy.layers = 24` is above the job's 12"),
        ({"hosts": 8, "layers": 12}, "states the size of the job itself"),
        ({"layers": 5}, "does not divide `layers = 12`"),
    ],
)
def test_a_size_that_is_not_smaller_is_refused(job, full, sizes, message) -> None:
    with pytest.raises(InputError, match=message):
        choose(stated(job, **sizes), full)


def program(folder, extra: str) -> Problem:
    return problem_of(PROGRAM.replace("EXTRA", extra), folder)


def test_a_launch_line_must_name_the_layers_that_are_cut(tmp_path) -> None:
    job = program(tmp_path, '"--batch={global_batch}"')
    with pytest.raises(InputError, match=r"the launch line does not name `\{layers\}`"):
        require_cuttable(job, Rung(hosts=2, layers=6, global_batch=64))
    require_cuttable(job, Rung(hosts=2, layers=12, global_batch=32))


def test_a_launch_line_must_name_the_batch_that_changes(tmp_path) -> None:
    job = program(tmp_path, '"--layers={layers}"')
    with pytest.raises(InputError, match=r"does not name `\{global_batch\}`, which is 32"):
        require_cuttable(job, Rung(hosts=2, layers=12, global_batch=32))
    require_cuttable(job, Rung(hosts=2, layers=6, global_batch=64))


def test_a_size_that_cannot_be_proposed_is_refused_with_its_reason(tmp_path) -> None:
    job = program(tmp_path, '"--layers=12"')
    with pytest.raises(InputError, match=r"does not name `\{global_batch\}`, which is 32"):
        choose(stated(job), job.candidates())


def test_a_job_without_a_prior_has_no_smaller_size(tmp_path) -> None:
    text = 'cluster = {devices_per_host = 2}\ncommand = {argv = ["python", "train.py", "--workers={workers=1:1,2}"]}\n'
    job = problem_of(text, tmp_path)
    with pytest.raises(InputError, match="has no prior"):
        choose(stated(job, hosts=1), job.candidates())


def test_the_table_of_a_job_file_states_the_size(make_job) -> None:
    assert make_job().proxy is None
    assert make_job("proxy = {}\n").proxy == ProxyChoice()
    assert make_job('proxy = {hosts = 2, layers = "auto"}\n').proxy == ProxyChoice(hosts=2)
    with pytest.raises(JobError, match="hosts"):
        make_job("proxy = {hosts = 0}\n")


def test_the_smaller_size_does_not_change_the_identity_of_a_study(make_job) -> None:
    assert make_job("proxy = {hosts = 2}\n").fingerprint == make_job().fingerprint
    assert Problem.from_dict(make_job("proxy = {hosts = 2}\n").to_dict()).proxy == ProxyChoice(hosts=2)
