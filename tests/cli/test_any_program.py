"""A program of which oppa knows nothing but its launch line: no model, knobs of its own, and steps or an objective that it prints."""

import json
import subprocess

import pytest

from oppa import catalog
from tests.command_line import while_read_only
from tests.sampling import nightly

WORKERS, COMPILED, PREFETCH = {1: 1.6, 2: 1.2, 4: 1.0, 8: 1.15}, {0: 1.0, 1: 0.8}, {"none": 1.3, "one": 1.0, "two": 1.1}
"""Factors of a step's time; the best configuration is 4, 1, one."""
PROGRAM = f"""
import argparse, random, time

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int)
parser.add_argument("--compile", type=int)
parser.add_argument("--prefetch")
given = parser.parse_args()
seconds = 0.01 * {WORKERS}[given.workers] * {COMPILED}[given.compile] * {PREFETCH}[given.prefetch]
for step in range(1000):
    time.sleep(0.01)
    now = seconds * random.uniform(0.98, 1.02)
    print(f"step {{step}} loss {{1 / (step + 1):.3f}} | {{1e3 * now:.3f}} ms | latency {{now}}", flush=True)
"""
JOB = """
[cluster]
devices_per_host = 1
[limits]
trials = 8
q_min = 3
q_max = 6
device_lock = false
"""
LAUNCH = ["--", "python3", "program.py", "--workers", "{workers=1:1,2,4,8}", "--compile", "{compile=0:0,1}"]
PREFETCHED = ["--prefetch", "{prefetch=none:none,one,two}"]

pytestmark = pytest.mark.slow


@pytest.fixture
def program(oppa):
    """The command line, in a folder with the program and its least job file."""
    (oppa.folder / "program.py").write_text(PROGRAM)
    (oppa.folder / "job.toml").write_text(JOB)
    return oppa


@pytest.mark.parametrize("seed", [0, *nightly(1, 2, 3, 4)])
def test_its_best_configuration_of_24_is_found_in_8_trials(seed, program) -> None:
    done = program("tune", "job.toml", "--json", "--study", "s", "--seed", str(seed), *LAUNCH, *PREFETCHED)
    assert "prior  none, as no [model] is stated" in done.stderr
    assert 'steps are read from lines in the format "step-ms"' in done.stderr
    found = json.loads(done.stdout)
    best, default = found["best"]["configuration"], found["baseline"]["configuration"]
    took = WORKERS[best["workers"]] * COMPILED[best["compile"]] * PREFETCH[best["prefetch"]]
    assert took <= 1.05 * 0.8 and len(found["trials"]) == 8
    assert (default["workers"], default["compile"], default["prefetch"]) == (1, 0, "none")
    factors = program("show", "s", "--surrogate").stdout
    assert "workers=4" in factors and "factor of this value" in factors and "Memory" not in factors
    assert "program.py --workers 4 --compile 1 --prefetch" in (program.folder / "s" / "best" / "run.sh").read_text()


@pytest.mark.parametrize("better", ["lower", *nightly("higher")])
def test_a_number_that_it_prints_is_the_objective(better, program) -> None:
    objective = f"[objective]\npattern = 'latency (?P<value>[0-9.e-]+)'\nunit = 'ms'\nbetter = '{better}'\n"
    (program.folder / "job.toml").write_text(JOB + objective)
    done = program("tune", "job.toml", "--json", "--study", "s", *LAUNCH, "--prefetch", "one")
    found = json.loads(done.stdout)
    assert found["objective"] == {"unit": "ms", "better": better}
    best = found["best"]["configuration"]
    assert (best["workers"], best["compile"]) == ((4, 1) if better == "lower" else (1, 0))
    assert found["best"]["objective"] == pytest.approx(0.008 if better == "lower" else 0.016, rel=0.02)
    assert " ms [" in done.stderr and "steps/s" not in done.stderr
    assert found["break_even"]["speed_up"] is None and "gain      " in done.stderr and "speed-up" not in done.stderr
    shown = program("show", "s")
    assert " ms " in shown.stdout and "steps/s" not in shown.stdout
    program("report", "s")
    explained = program("explain", "s", "workers=2").stdout
    assert f"times as good as the best: {better} is better" in explained and " ms measured" in explained and "steps/s" not in explained
    found = json.loads(program("explain", "s", "workers=2", "--json").stdout)
    assert found["objective"]["unit"] == "ms" and found["value"] > 0 and "memory" not in found
    assert "no trial was measured" in program("explain", "job.toml", "workers=2", *LAUNCH, "--prefetch", "one", code=2).stderr


def test_an_objective_that_is_not_positive_fails_with_its_cause(program) -> None:
    (program.folder / "job.toml").write_text(JOB + "[objective]\npattern = 'loss (?P<value>[0-9.-]+)'\n")
    (program.folder / "program.py").write_text(PROGRAM.replace("{1 / (step + 1):.3f}", "{-step}"))
    done = program("tune", "job.toml", "--study", "s", *LAUNCH, "--prefetch", "one", code=1)
    assert "times, rates and objectives must be positive" in done.stderr


def test_a_value_that_the_program_refuses_fails_its_trials_with_the_program_s_words(program) -> None:
    (program.folder / "program.py").write_text(PROGRAM.replace('"--workers", type=int', '"--workers", type=int, choices=[1, 2, 4]'))
    knobs = ["--workers", "{workers=1:1,16}", "--compile", "0", "--prefetch", "{prefetch=one:one,two}"]
    found = json.loads(program("tune", "job.toml", "--json", "--study", "s", "--", "python3", "program.py", *knobs).stdout)
    refused = [each for each in found["trials"] if each["configuration"]["workers"] == 16]
    assert refused and all(each["outcome"] == "failed" for each in refused)
    assert all("argument --workers: invalid choice: 16 (choose from" in each["cause"] for each in refused)
    assert found["best"]["configuration"]["workers"] == 1


ENTRIES = """
extends = "program"

[parameters.cp]
divisors = "devices"
degree = true
words = "--workers {cp}"

[parameters.coffee]
values = ["none", "one", "two"]
words = "--compile 1 --prefetch {coffee}"
"""
KEYS = """
extends = "deepspeed"

[parameters.coffee]
values = ["none", "one", "two"]
keys = "kitchen.coffee"
"""
MODEL = """
model = {preset = "tiny-1m"}
batch = {global_batch = 8}
command.files.ds = {path = "ds.json"}
space.parameters = {zero_stage = [1, 2, 3]}
"""
READS_FILE = """
import json, sys, time
config = json.load(open(sys.argv[1]))
seconds = 0.01 * config["zero_optimization"]["stage"] * {"none": 1, "one": 2, "two": 3}[config["kitchen"]["coffee"]]
for step in range(1000):
    time.sleep(0.01)
    print(f"step {step} loss {1 / (step + 1):.3f} | {1e3 * seconds:.3f} ms", flush=True)
"""


def tuned_while_read_only(program, entries: str, launch: list[str], more: str = "") -> list[dict]:
    """The configurations of four trials in a search space of the user's own, while nothing can be written into oppa's folder."""
    (program.folder / "space.toml").write_text(entries)
    job = JOB.replace("host = 1", "host = 4\nmemory_limit = '1 GiB'").replace("trials = 8", "trials = 4")
    (program.folder / "job.toml").write_text(f'space.name = "./space.toml"\n{more}{job}')
    words = program.argv("tune", "job.toml", "--json", "--study", "s", "--", *launch)
    argv = [*while_read_only(catalog.root()), *words]
    done = subprocess.run(argv, cwd=program.folder, env=program.environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    tried = [each["configuration"] for each in json.loads(done.stdout)["trials"]]
    assert len(tried) == 4 and len({each["coffee"] for each in tried}) > 1
    return tried


def test_a_degree_and_a_made_up_knob_are_one_entry_each_while_the_repository_is_read_only(program) -> None:
    tried = tuned_while_read_only(program, ENTRIES, ["python3", "program.py"])
    assert all(each["dp"] * each["cp"] == 4 for each in tried) and len({each["cp"] for each in tried}) > 1


def test_a_made_up_knob_of_deepspeed_is_one_entry_with_its_key_while_the_repository_is_read_only(program) -> None:
    (program.folder / "program.py").write_text(READS_FILE)
    (program.folder / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    tried = tuned_while_read_only(program, KEYS, ["python3", "program.py", "{ds}"], MODEL)
    assert len({each["zero_stage"] for each in tried}) > 1
