"""A message of an agent that is lost, doubled, late or damaged confuses no trial, and costs the next one nothing."""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oppa.launchers import hosts
from oppa.launchers.agent import AgentTask
from oppa.launchers.agent_client import AgentClient
from oppa.launchers.exit_report import parse_exit
from oppa.launchers.hosts import HostsLauncher
from oppa.problem.training import Limits
from oppa.trials.runner import load_runner
from oppa.trials.trial import TrialResult, run_trial
from tests.hostile.damage import edits
from tests.hostile.relay import TAMPER, TAMPERED
from tests.sampling import nightly
from tests.trials.conftest import SCRIPT_RUNNER, STUDY, TwoHosts, script_spec

RELAY = Path(__file__).parent / "relay.py"
LIMITS = Limits(trial_time_s=60, grace_s=1, device_lock=False)


class Relayed(TwoHosts):
    """Holds two hosts whose agents are connected through relays."""

    def __init__(self, kind: str, marks: Path) -> None:
        self.kind, self.marks = kind, marks

    def commands(self, task: AgentTask) -> list[list[str]]:
        pairs = enumerate(super().commands(task))  # type: ignore[no-untyped-call]
        return [[sys.executable, "-S", str(RELAY), self.kind, str(host), str(self.marks), *command] for host, command in pairs]


@pytest.fixture
def trials(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], TrialResult]]:
    """Run trials on two hosts, one after the other, with less patience where a message is lost."""
    if request.param in ("lost end", "lost exit"):
        monkeypatch.setattr(hosts, "PATIENCE_S", 1.0)
        monkeypatch.setattr(hosts, "SILENCE_S", 5.0)
    numbers, spec = iter(range(100)), script_spec()
    spec = dataclasses.replace(spec, cluster=dataclasses.replace(spec.cluster, hosts=2, devices_per_host=1))
    with HostsLauncher(load_runner(SCRIPT_RUNNER), Relayed(request.param, tmp_path), study=STUDY, grace_s=1) as launcher:
        yield lambda: run_trial(launcher, tmp_path / f"trial{next(numbers)}", spec, limits=LIMITS)


def completed(result: TrialResult) -> bool:
    return (result.outcome, result.cause, result.steps) == ("completed", "", 4)


@pytest.mark.slow
@pytest.mark.parametrize("trials", ["doubled", "repeated", "late", "noisy"], indirect=True)
def test_what_comes_twice_late_or_mixed_changes_no_outcome(trials: Callable[[], TrialResult]) -> None:
    assert [completed(trials()) for _ in range(2)] == [True] * 2


@pytest.mark.slow
@pytest.mark.parametrize("trials", ["lost end", *nightly("lost ended"), "lost alive"], indirect=True)
def test_a_message_after_which_nothing_runs_may_be_lost(trials: Callable[[], TrialResult]) -> None:
    assert [completed(trials()) for _ in range(2)] == [True] * 2


@pytest.mark.slow
@pytest.mark.parametrize("trials", [*nightly("lost start"), "lost exit"], indirect=True)
def test_a_host_of_which_nothing_is_heard_ends_one_trial_alone(trials: Callable[[], TrialResult]) -> None:
    first = trials()
    assert first.outcome == "interrupted" and first.cause.endswith("no longer responds")
    assert completed(trials())


@pytest.mark.slow
@pytest.mark.parametrize("trials", ["tampered"], indirect=True)
def test_a_damaged_report_of_the_end_is_a_failed_trial(trials: Callable[[], TrialResult], tmp_path: Path) -> None:
    for how in TAMPERED:
        (tmp_path / TAMPER).write_text(how)
        first = trials()
        assert first.outcome == "failed" and first.cause and "\x1b" not in first.cause and len(first.cause) < 10_000, how
        assert completed(trials()), how


def test_no_field_of_a_report_is_taken_for_another() -> None:
    process = {"rank": 0, "code": 0, "signal": 9, "time": 1.0}
    whole = {"processes": [process], "failure": "", "kernel_oom": False, "revoked": "the hosts are mine", "traceback": ""}
    assert not parse_exit(json.dumps(whole).encode()).revoked, "only the pool knows"
    for _ in edits(whole, wrongs=19):
        try:
            found = parse_exit(json.dumps(whole).encode())
        except (KeyError, TypeError, ValueError):
            continue
        assert all(map(str, found.processes)) and isinstance(found.failure + found.traceback, str)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["mkfifo {0}", "mkdir {0}", "ln -s ../elsewhere {0}"], ids=["pipe", "folder", "link"])
def test_whatever_takes_the_place_of_a_log_the_logs_of_other_hosts_are_neither_waited_for_nor_written_elsewhere(
    what: str, tmp_path: Path
) -> None:
    """Rank 0 puts it there, and rank 1 prints on the other host."""
    log = tmp_path / "trial" / "stdout.log"
    (tmp_path / "elsewhere").write_text("")
    spec = script_spec(f"shell 'rm {log}; {what.format(log)}' @ 0\nprint 100 @ 1\nsteps 4 0.01")
    spec = dataclasses.replace(spec, cluster=dataclasses.replace(spec.cluster, hosts=2, devices_per_host=1))
    with HostsLauncher(load_runner(SCRIPT_RUNNER), TwoHosts(), study=STUDY, grace_s=1) as launcher:  # type: ignore[no-untyped-call]
        assert completed(run_trial(launcher, tmp_path / "trial", spec, limits=LIMITS))
    assert (tmp_path / "elsewhere").read_text() == ""


TWICE = """
import json, sys
print(json.dumps({"event": "ready", "host": 0}), flush=True)
for line in sys.stdin:
    for _ in range(2):
        print(json.dumps({"event": "ended", "host": 0, "launch_id": json.loads(line)["launch_id"]}), flush=True)
"""


@pytest.mark.slow
def test_one_host_twice_is_not_two_hosts(tmp_path: Path) -> None:
    """The other host does not answer."""
    quiet = 'print(\'{"event": "ready", "host": 1}\', flush=True); input(); input()'
    commands = [[sys.executable, "-c", program] for program in (TWICE, quiet)]
    agents = AgentClient(commands, hosts=2, environment={}, grace_s=0.5, log=tmp_path / "log")
    try:
        agents.wait_ready()
        agents.tell(do="end", launch_id=1)
        assert not agents.all_ended(1, within_s=1.0)
    finally:
        agents.close()
