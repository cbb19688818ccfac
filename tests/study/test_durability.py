"""Whatever kills a tuner while it writes, every acknowledged trial is stored."""

import os
import random
import subprocess
import sys
import time

import pytest

from oppa.study import Study
from oppa.trials.orphans import left_behind

KILLS = 8
"""Kills by default; `make faults` has 25 times as many."""

WRITER = """
import sys
from pathlib import Path
from oppa.problem.configuration import Configuration
from oppa.study import Study
from oppa.trials.throughput import ThroughputEstimate
from oppa.trials.trial import TrialResult

study = Study.create(Path(sys.argv[1]), {}, "fingerprint")
study.recover()
estimate = ThroughputEstimate(steps_per_s=10.0, variance=0.1, kept=29)
result = TrialResult(outcome="completed", step_times_s=(0.1,) * 30, estimate=estimate, seconds=3.0)
print("ready", flush=True)
while True:
    lease = study.claim(Configuration(dp=1, global_batch=8, micro_batch=1), pairing="A|B")
    study.finish(lease, result)
    print(lease.trial, flush=True)
"""

TUNER = """
import subprocess, sys
from pathlib import Path
from oppa.problem.configuration import Configuration
from oppa.study import Study
from oppa.trials import processes

with Study.create(Path(sys.argv[1]), {}, "fingerprint") as study:
    study.claim(Configuration(dp=1, global_batch=8, micro_batch=1))
    subprocess.Popen(["sleep", "100"], env={processes.STUDY_TAG: study.uuid, processes.TUNER_TAG: processes.tuner_tag()})
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.faults
def test_no_acknowledged_trial_is_lost(tmp_path) -> None:
    folder, chance, acknowledged = tmp_path / "study", random.Random(0), set()
    rounds = 25 if int(os.environ.get("OPPA_FAULT_REPEATS", "1")) > 1 else 1
    for _ in range(KILLS * rounds):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0.0, 0.08))
            writer.kill()
            lines = writer.stdout.read().splitlines(keepends=True)
        acknowledged |= {int(line) for line in lines if line.endswith("\n")}
    with Study(folder) as study:
        stored = {trial.id for trial in study.trials() if trial.outcome == "completed"}
    assert acknowledged and acknowledged <= stored


@pytest.mark.slow
def test_a_tuner_in_a_container_with_the_name_of_this_host_keeps_its_trial(tmp_path) -> None:
    container = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*container, "true"], capture_output=True).returncode:
        pytest.skip("this machine has no namespaces for its users")
    command = [*container, sys.executable, "-c", TUNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tuner:
        assert tuner.stdout is not None and tuner.stdout.readline() == "ready\n"
        with Study(tmp_path) as study:
            assert study.recover() == [] and left_behind(study.uuid) == set()
            assert len(study.running()) == 1
