"""The place of trials is what the user asks for, resolved or refused before anything starts."""

import json
import logging
import time

import pytest

from oppa.errors import EnvironmentLackingError, InputError
from oppa.launchers import slurm
from oppa.launchers.agent import AgentTask
from oppa.launchers.parallel_tuners import parallel_tuners
from oppa.launchers.provider import LOCAL, NETLAB, SLOT, SLURM, Backend, HostRequest, WaitingTuner
from oppa.launchers.resolve import LaunchRequest, open_backend
from oppa.launchers.slurm_job import slurm_job
from oppa.launchers.slurm_provider import SlurmProvider, sbatch_words
from oppa.problem.allocation import NETLAB as HOSTS_GIVEN
from oppa.problem.cluster import Cluster
from oppa.problem.training import LauncherChoice
from oppa.trials.local import LocalLauncher
from oppa.trials.runner import load_runner
from tests.trials.conftest import SCRIPT_RUNNER

ONE, TWO = (Cluster(hosts=hosts, devices_per_host=2, memory_limit_bytes=1 << 30) for hosts in (1, 2))
LAB = {
    "hosts": [{"address": f"10.77.0.{host}", "namespace": f"/proc/1/fd/{host}"} for host in (1, 2)],
    "interface": "oppa0",
    "bandwidth_bytes_per_s": 25e6,
    "latency_s": 1e-3,
    "ranks_per_host": 2,
    "cpus_per_rank": None,
}


ANSWERS = {
    "show job": "JobId=7 NodeList=n[1-3]  Nodes=n[1-3] CPU_IDs=0-7 Mem=0 GRES=\n",
    "show hostnames n[1-3]": "n1 n2 n3",
    "show hostnames n2": "n2",
    "show node": "NodeName=n NodeAddr=127.0.0.1",
}


@pytest.fixture(autouse=True)
def nothing_is_given(monkeypatch):
    for name in (HOSTS_GIVEN, "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def played(monkeypatch):
    """We were started by `oppa emulate`."""
    monkeypatch.setenv(HOSTS_GIVEN, json.dumps(LAB))


def test_one_host_is_this_one(tmp_path):
    request = LaunchRequest().resolve(ONE)
    assert request.launcher == LOCAL
    with open_backend(request, ONE, tmp_path, name="job", grace_s=1, on_tick=lambda: None) as engine:
        assert engine.tuners == 1
        with engine.launcher(load_runner(SCRIPT_RUNNER), study="00000000-engine", grace_s=1) as launcher:
            assert isinstance(launcher, LocalLauncher)


@pytest.mark.slow
def test_a_parallel_tuner_that_fails_is_reported_once(tmp_path, monkeypatch, caplog):
    monkeypatch.delenv(SLOT, raising=False)
    tuners = parallel_tuners(Backend(tuners=2), ["no-command"], tmp_path, grace_s=1)
    with caplog.at_level(logging.WARNING, "oppa"), tuners as warn_of_failed:
        while not caplog.records:
            warn_of_failed()
            time.sleep(0.01)
    (record,) = caplog.records
    assert "tuner 1 exited with code 2" in record.getMessage() and "tuner1.log" in record.getMessage()


def test_a_tuner_is_alone_unless_others_run_in_parallel(monkeypatch):
    assert Backend().is_alone and not Backend(tuners=2).is_alone
    monkeypatch.setenv(SLOT, "1")
    assert not Backend().is_alone


def test_several_hosts_are_an_error_where_there_is_one():
    with pytest.raises(EnvironmentLackingError, match="this job needs 2 hosts") as raised:
        LaunchRequest().resolve(TWO)
    assert "salloc --nodes=2" in raised.value.hint
    with pytest.raises(EnvironmentLackingError, match="runs on one host"):
        LaunchRequest(launcher=LOCAL).resolve(TWO)


def test_hosts_that_are_played_are_used(played, tmp_path):
    request = LaunchRequest().resolve(TWO)
    assert request.launcher == NETLAB
    with open_backend(request, TWO, tmp_path, name="job", grace_s=1, on_tick=lambda: None) as engine:
        assert engine.pool.addresses == ("10.77.0.1", "10.77.0.2")


@pytest.mark.parametrize(
    ("cluster", "option"),
    [
        (Cluster(hosts=3, devices_per_host=2, memory_limit_bytes=1), "--hosts 3"),
        (Cluster(hosts=2, devices_per_host=4, memory_limit_bytes=1), "--ranks-per-host 4"),
    ],
)
def test_more_than_is_played_is_an_error(played, cluster, option):
    with pytest.raises(EnvironmentLackingError) as raised:
        LaunchRequest().resolve(cluster)
    assert option in raised.value.hint


def test_hosts_are_played_only_below_netlab():
    with pytest.raises(EnvironmentLackingError, match="no hosts are emulated here"):
        LaunchRequest(launcher=NETLAB).resolve(ONE)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (LaunchRequest(launcher="slrum"), "`slrum` is not a launcher"),
        (LaunchRequest(parallel=2), "`parallel = 2` in .launcher. needs a launcher with hosts for each trial"),
        (LaunchRequest(options={"time": 1}), "the launcher `local` has no option `time`"),
        (LaunchRequest(launcher=SLURM, options={"partiton": "gpu"}), "the launcher `slurm` has no option `partiton`"),
    ],
    ids=["launcher", "parallel", "no-options", "options"],
)
def test_what_makes_no_sense_is_an_error(request_, words):
    with pytest.raises(InputError, match=words) as refusal:
        request_.resolve(ONE)
    assert refusal.value.hint


def test_an_unknown_option_is_an_error_that_names_the_nearest():
    with pytest.raises(InputError) as refusal:
        LaunchRequest(launcher=SLURM, options={"partiton": "gpu"}).resolve(ONE)
    assert refusal.value.hint == "did you mean `partition`?"


def test_the_options_of_a_job_file_belong_to_its_launcher():
    choice = LauncherChoice(name=SLURM, options={"partition": "gpu", "time": "1:00"})
    assert LaunchRequest.of(choice) == LaunchRequest(launcher=SLURM, options=choice.options)
    assert LaunchRequest.of(choice, launcher=SLURM).options == choice.options
    assert LaunchRequest.of(choice, launcher=LOCAL) == LaunchRequest(launcher=LOCAL)
    any_launcher = LauncherChoice(options={"partition": "gpu"})
    assert LaunchRequest.of(any_launcher, launcher=SLURM).options == {"partition": "gpu"}


def test_options_become_words_for_sbatch():
    words = sbatch_words({"partition": "gpu", "nice": 10, "exclusive": True, "overcommit": False})
    assert words == ["--partition=gpu", "--nice=10", "--exclusive"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [("echo 'sbatch: error: no such account' >&2; exit 1", "error: no such account"), ("exec sleep 60", r"has not answered in 0\.5 s")],
    ids=["refused", "silent"],
)
def test_a_request_for_hosts_that_slurm_refuses_or_does_not_answer_is_an_error(answer, words, monkeypatch, tmp_path):
    script = tmp_path / "sbatch"
    script.write_text(f"#!/bin/sh\n{answer}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(slurm, "ANSWER_S", 0.5)
    options = {"slots": 1, "name": "n", "folder": tmp_path, "grace_s": 1.0, "on_tick": lambda: None}
    with pytest.raises(EnvironmentLackingError, match=words) as refusal, slurm_job(ONE, ["--partition=gpu"], **options):
        pass
    assert "sbatch --nodes=1" in refusal.value.hint and not list(tmp_path.glob("*.alive"))


def test_the_rules_of_a_site_are_options():
    rules = {"account": "chem", "qos": "low", "reservation": "maint", "licenses": "lustre", "no-requeue": True}
    assert rules.keys() <= SlurmProvider.options
    assert sbatch_words(rules) == ["--account=chem", "--qos=low", "--reservation=maint", "--licenses=lustre", "--no-requeue"]


@pytest.fixture
def allocated(monkeypatch, tmp_path):
    """We run in an allocation of three hosts."""
    script = tmp_path / "scontrol"
    cases = "".join(f"*'{words}'*) echo '{answer.strip()}';;\n" for words, answer in ANSWERS.items())
    script.write_text(f'#!/bin/sh\ncase "$*" in\n{cases}esac\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    return WaitingTuner(folder=tmp_path, name="job", grace_s=1, on_tick=lambda: None)


def test_binding_is_of_the_steps_of_trials(allocated):
    binding = {"cpu-bind": "cores", "mem-bind": "local"}
    request = LaunchRequest(options=binding).resolve(TWO)
    assert request == LaunchRequest(launcher=SLURM, options=binding)
    with SlurmProvider().open(request.hosts(TWO), allocated) as backend:
        (step,) = backend.pool.commands(AgentTask(runner="agent", runs=False, study="s", hosts=2, grace_s=1))
    assert {"--cpu-bind=cores", "--mem-bind=local"} <= {*step}
    assert sbatch_words({"partition": "gpu", **binding}) == ["--partition=gpu"]


def test_binding_is_no_option_of_a_launcher_that_oppa_chooses_without_slurm():
    assert LaunchRequest(options={"cpu-bind": "cores"}).resolve(ONE) == LaunchRequest(launcher=LOCAL)
    with pytest.raises(InputError, match="the launcher `local` has no option `cpu-bind`"):
        LaunchRequest(launcher=LOCAL, options={"cpu-bind": "cores"}).resolve(ONE)


def test_excluded_hosts_of_an_allocation_run_no_trial(allocated):
    request = HostRequest(cluster=TWO, options={"exclude": "n2"})
    with SlurmProvider().open(request, allocated) as backend:
        assert backend.hosts() == ("n1", "n3")
    with pytest.raises(EnvironmentLackingError, match="has 0"):
        SlurmProvider().require(HostRequest(cluster=TWO, options={"exclude": "n[1-3]"}))
