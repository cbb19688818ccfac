"""The user's own program as a trial: started as it stands, its steps reported or read from what it prints."""

import dataclasses
import json
import re
import subprocess
import sys
import textwrap

import pytest

from oppa import catalog
from oppa.errors import EnvironmentLackingError, JobError
from oppa.problem.command import Argument, ConfigFile, LaunchCommand
from oppa.problem.command_table import formats
from oppa.problem.job import load_job
from oppa.trials.runner import require_program
from oppa.trials.trial import run_trial
from tests.sampling import nightly
from tests.trials.conftest import COMMAND_LIMITS, ends_at, script_spec

REPORTING = """
    import sys, time, oppa_client
    trial = oppa_client.open_trial()
    for step in range(int(sys.argv[1])):
        time.sleep(0.01)
        if not trial.step(0.01, loss=float(step), memory_bytes=7):
            break
    print("took", step + 1, *sys.argv[2:])
"""


def test_a_program_that_reports_is_started_as_it_stands(command_trial, tmp_path):
    result = command_trial(REPORTING, "{steps}", "{micro_batch}", "a b", "{{}}")
    assert (result.outcome, result.steps, result.losses, result.memory_bytes) == ("completed", 4, (0, 1, 2, 3), 7)
    assert "took 4 1 a b {}" in (tmp_path / "trial" / "stdout.log").read_text()


def test_a_program_that_would_go_on_gets_the_end_of_the_trial(command_trial, tmp_path):
    assert command_trial(REPORTING, "1000").outcome == "completed"
    assert "took 4" in (tmp_path / "trial" / "stdout.log").read_text()


def test_a_stop_rule_ends_it_early(command_trial):
    result = command_trial(REPORTING, "1000", steps=900, stop_rule=ends_at(3))
    assert result.outcome == "terminated_early" and 3 <= result.steps < 100


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        ("MemoryError()", "out_of_memory"),
        ("type('OutOfMemoryError', (RuntimeError,), {})('CUDA')", "out_of_memory"),
        ("OSError(5)", "failed"),
    ],
)
def test_an_uncaught_error_is_reported(command_trial, error, outcome):
    result = command_trial(f"import oppa_client\ntrial = oppa_client.open_trial()\nraise {error}")
    assert (result.outcome, result.rank) == (outcome, 0) and error.partition("(")[0].split("'")[0] and result.traceback


def test_a_program_finds_report_and_no_module_that_it_would_not_find_without_oppa(command_trial, tmp_path):
    names = sorted({path.stem for path in (catalog.root() / "runners").iterdir()} - {"__pycache__"})
    look = "import sys, importlib.util\nprint(*[name for name in sys.argv[1:] if importlib.util.find_spec(name)])"
    without = subprocess.run([sys.executable, "-P", "-c", look, *names], capture_output=True, text=True, check=True, cwd=tmp_path)
    command_trial(f"{look}\nimport oppa_client\noppa_client.open_trial().step(0.01)", *names)
    assert (tmp_path / "trial" / "stdout.log").read_text().splitlines()[-1] == without.stdout.strip()
    assert {"deepspeed", "torch", "rank"} <= set(names) and "torch" in without.stdout


PRINTING = """
    import sys, time
    for step in range(1000):
        time.sleep(0.02)
        print(f"step {step}: took 20.0 ms, loss 2.5", flush=True)
"""


def test_steps_are_read_from_what_it_prints_and_it_is_ended_once_there_are_enough(command_trial):
    result = command_trial(PRINTING, pattern=r"took (?P<ms>[\d.]+) ms, loss (?P<loss>[\d.]+)")
    assert (result.outcome, result.steps, set(result.step_times_s), set(result.losses)) == ("completed", 4, {0.02}, {2.5})


def test_without_a_time_the_clock_counts(command_trial):
    result = command_trial(PRINTING, pattern=r"step (?P<step>\d+):")
    assert result.outcome == "completed" and all(0.015 < each < 0.5 for each in result.step_times_s[1:])


def test_a_progress_bar_that_shows_a_step_again_counts_it_once(command_trial):
    bar = r"""
        import sys, time
        for step in range(1, 1000):
            time.sleep(0.01)
            sys.stderr.write(f"\rEpoch 0:   1%|#  | {step}/1000 [00:01<00:10,  8.30it/s]" * 2)
    """
    assert command_trial(bar, pattern=formats()["lightning"]["pattern"]).steps == 4


def test_a_stop_rule_ends_a_program_without_the_client(command_trial):
    result = command_trial(PRINTING, steps=900, pattern=r"took (?P<ms>[\d.]+) ms", stop_rule=ends_at(3))
    assert result.outcome == "terminated_early" and result.steps < 100


@pytest.mark.parametrize(
    ("end", "outcome", "cause"),
    [
        ("print('torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB'); sys.exit(1)", "out_of_memory", "Tried 2 GiB"),
        ("sys.exit(3)", "failed", "exited with code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "failed", "killed by SIGKILL"),
        ("sys.exit(0)", "failed", "ended after 1 of 4 steps"),
    ],
)
def test_how_such_a_program_fails_is_reported(command_trial, end, outcome, cause):
    result = command_trial(f"import sys\nprint('took 20.0 ms')\n{end}", pattern=r"took (?P<ms>[\d.]+) ms")
    assert result.outcome == outcome and cause in result.cause


TRAINING = """
    import pathlib, sys, time
    for step in range(5):
        time.sleep(0.05)
        print({"loss": "2.5", "grad_norm": "1", "epoch": f"0.{step}"}, flush=True)
    print({"train_runtime": "1.2", "epoch": "1"}, flush=True)
    time.sleep(float(sys.argv[2]))
    pathlib.Path(sys.argv[1]).touch()
"""


@pytest.mark.parametrize("format", ["hf-trainer", None])
def test_a_harmless_trial_ends_with_the_programs_own_last_step_before_it_evaluates_or_saves(command_trial, tmp_path, format):
    result = command_trial(
        TRAINING, str(tmp_path / "saved"), "100", steps=9, limits=dataclasses.replace(COMMAND_LIMITS, q_min=3), format=format, harmless=True
    )
    assert (result.outcome, result.steps, result.cause) == ("completed", 5, "")
    assert not (tmp_path / "saved").exists()


def test_a_program_that_is_started_as_it_stands_does_what_it_does_after_its_last_step(command_trial, tmp_path):
    limits = dataclasses.replace(COMMAND_LIMITS, q_min=3)
    result = command_trial(TRAINING, str(tmp_path / "saved"), "0", steps=9, limits=limits)
    assert (result.outcome, result.steps) == ("completed", 5) and (tmp_path / "saved").exists()


COUNTING = """
    import sys
    for step in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
        print(f"step {step} took 20.0 ms")
"""


def test_progress_bars_of_a_program_that_reports_are_no_steps(command_trial, tmp_path):
    program = """
        import time, oppa_client
        trial = oppa_client.open_trial()
        for step in range(9):
            for done in (step, step + 1):
                print(f"  {done}%| | {done}/100 [00:00<00:09,  9.71it/s]", flush=True)
            time.sleep(0.01 if step else 0.5)  # so that two bars are read before the first step is reported
            if not trial.step(0.01, loss=float(step)):
                break
    """
    result = command_trial(program)
    assert (result.outcome, result.losses) == ("completed", (0.0, 1.0, 2.0, 3.0))
    assert not (tmp_path / "trial" / "recognised").exists()


@pytest.mark.parametrize(
    ("first", "count"),
    [
        *((0, 9), (1, 10), (1000, 11)),  # tests/runners counts all of them without a program
        *(
            pytest.param(first, count, marks=pytest.mark.nightly)
            for first, count in ((0, 10), (0, 11), (1, 9), (1, 11), (1000, 9), (1000, 10))
        ),
    ],
)
def test_a_program_takes_its_steps_and_ends_from_wherever_it_counts(command_trial, first, count):
    result = command_trial(COUNTING, str(first), str(count), steps=10, pattern=r"step (?P<step>\d+) took (?P<ms>[\d.]+) ms")
    assert (result.outcome, result.steps, set(result.step_times_s)) == ("completed", min(count, 10), {0.02})


@pytest.mark.parametrize(
    ("count", "outcome"),
    [(0, "failed"), (2, "failed"), (4, "failed"), (5, "completed"), pytest.param(9, "completed", marks=pytest.mark.nightly)],
)
def test_a_program_that_ends_by_itself_is_completed_after_q_min_steps(command_trial, count, outcome):
    result = command_trial(COUNTING, "0", str(count), steps=10, pattern="took (?P<ms>[0-9.]+) ms")
    assert (result.outcome, result.steps, result.estimate is not None) == (outcome, count, count > 2)


@pytest.mark.parametrize(("settle", "count", "outcome"), [(0, 2, "failed"), (0, 3, "completed"), (20, 22, "failed"), (20, 23, "completed")])
def test_fewer_than_three_settled_steps_are_never_enough(command_trial, settle, count, outcome):
    limits, pattern = dataclasses.replace(COMMAND_LIMITS, q_min=2, settle=settle), "took (?P<ms>[0-9.]+) ms"
    result = command_trial(COUNTING, "0", str(count), steps=30, limits=limits, pattern=pattern)
    assert (result.outcome, result.estimate is not None) == (outcome, outcome == "completed")


TRANSIENT = """
    for step in range(50):
        print(f"took {50.0 if step < 30 else 20.0} ms", flush=True)
"""


@pytest.mark.parametrize(("settle", "steps_per_s"), [(0, 25 / 0.65), (30, 50.0), (47, 50.0), (48, None), (60, None)])
def test_steps_before_the_program_has_settled_are_not_measured(command_trial, settle, steps_per_s):
    limits = dataclasses.replace(COMMAND_LIMITS, settle=settle)
    result = command_trial(TRANSIENT, steps=50, limits=limits, pattern="took (?P<ms>[0-9.]+) ms")
    assert (result.outcome, result.steps) == ("completed" if steps_per_s else "failed", 50)
    assert result.cause == ("" if steps_per_s else f"`settle = {settle}` leaves too few of 50 steps to measure")
    assert (result.estimate and result.estimate.steps_per_s) == (steps_per_s and pytest.approx(steps_per_s))


FILES = {"json": '{"a": {"b": 1}, "kept": 3}', "yaml": "a: {b: 1}\nkept: 3\n", "toml": "kept = 3 # why\n[a]\nb = 1\n"}
READING = """
    import json, sys, tomllib, yaml
    for path, parse in zip(sys.argv[1:], (json.load, yaml.safe_load, tomllib.load), strict=True):
        with open(path, "rb") as file:
            print(json.dumps(parse(file)))
"""


def test_a_container_has_the_folders_of_the_client_and_of_the_study(command_launcher, tmp_path):
    starts = tmp_path / "apptainer"
    starts.write_text('#!/bin/sh\n[ "$2" = "$MOUNTED" ] || exit 3\nshift 3\nexec "$@"\n')
    starts.chmod(0o755)
    (tmp_path / "program.py").write_text(textwrap.dedent(REPORTING))
    argv = ("env", f"MOUNTED=--bind={catalog.client()},{tmp_path}", str(starts), "exec", "image.sif", sys.executable)
    command = LaunchCommand(argv=(*argv, str(tmp_path / "program.py"), "4"))
    spec = dataclasses.replace(script_spec(steps=4, ranks=1), command=command)
    assert run_trial(command_launcher, tmp_path / "trials" / "1", spec, limits=COMMAND_LIMITS).outcome == "completed"


def test_a_copy_names_the_copy_of_another_file(command_trial, tmp_path):
    (tmp_path / "ds.json").write_text('{"stage": 1}')
    (tmp_path / "args.json").write_text('{"deepspeed": "ds.json"}')
    named = (("arguments", "args.json", {"deepspeed": "{ds}"}), ("ds", "ds.json", {"stage": "{micro_batch}", "rate": 0.5}))
    files = [ConfigFile(name=name, path=str(tmp_path / path), keys=keys) for name, path, keys in named]
    shown = 'import json, sys\nprint(json.load(open(json.load(open(sys.argv[1]))["deepspeed"])))'
    command_trial(shown, "{arguments}", files=files)
    assert "{'stage': 1, 'rate': 0.5}" in (tmp_path / "trial" / "stdout.log").read_text()


def test_configuration_files_are_copied_with_their_keys_rewritten(command_trial, tmp_path):
    keys = {"a.b": "{micro_batch}", "new.c": "mbs{micro_batch}"}
    for kind, content in FILES.items():
        (tmp_path / f"config.{kind}").write_text(content)
    command_trial(
        READING,
        *(f"{{{kind}}}" for kind in FILES),
        files=[ConfigFile(name=kind, path=str(tmp_path / f"config.{kind}"), keys=keys) for kind in FILES],
    )
    printed = (tmp_path / "trial" / "stdout.log").read_text().splitlines()[-3:]
    assert [json.loads(line) for line in printed] == [{"a": {"b": 1}, "kept": 3, "new": {"c": "mbs1"}}] * 3
    assert {kind: (tmp_path / f"config.{kind}").read_text() for kind in FILES} == FILES


SYNCHRONIZED = """
    import os, time, oppa_client
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    trial = oppa_client.open_trial()
    for step in range(1000):
        dist.all_reduce(torch.ones(1))
        time.sleep(0.01)
        if not trial.step(0.01):
            break
    print(f"rank {dist.get_rank()} took {step + 1}")
    dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("stop_rule", [*nightly(None), ends_at(3)], ids=["all its steps", "ended early"])
def test_all_ranks_end_after_the_same_step_without_a_message(command_trial, tmp_path, stop_rule):
    result = command_trial(SYNCHRONIZED, ranks=2, steps=5 if stop_rule is None else 900, stop_rule=stop_rule)
    assert result.outcome == ("completed" if stop_rule is None else "terminated_early")
    printed = re.findall(r"rank \d took (\d+)", (tmp_path / "trial" / "stdout.log").read_text())  # ranks may print into one line
    assert printed == [str(result.steps)] * 2


def test_what_cannot_be_started_is_refused_before_any_trial(tmp_path):
    (tmp_path / "job.toml").write_text(
        '[model]\npreset = "tiny-4m"\n[batch]\nglobal_batch = 8\n[cluster]\ndevices_per_host = 4\nmemory_limit = "1 GiB"\n'
    )
    problem = load_job(tmp_path / "job.toml", argv=["no-such-program", "{recompute}"])
    with pytest.raises(EnvironmentLackingError, match="starts `no-such-program`, which is not installed"):
        require_program(problem.command, problem.space)
    argument = Argument(parameter="recompute", by_value={"none": (), "full": ("--recompute",)})
    with pytest.raises(JobError, match=r"`\[command.arguments.recompute\]` has no entry for `selective`"):
        require_program(LaunchCommand(argv=("true",), arguments=(argument,)), problem.space)
