"""Every job and every step format of the docs runs: before the real library, or a tiny real program that prints as it does.

Each runs with one micro-batch per optimizer step and with four, as what counts is steps. One of the two is left to `make nightly`, as
tests/runners counts the steps of every format without a program.
"""

import os
import re
import sys
import tomllib

import pytest

from oppa.problem.job import load_job
from oppa.problem.training_table import TrainingTable
from tests.docs.conftest import DOCS, PROGRAMS, blocks

NIGHTLY = pytest.mark.nightly
STEPS = 6
JOB = '[model]\npreset = "tiny-1m"\n'
TRAIN = [
    "torchrun",
    "--nproc-per-node",
    "{devices_per_host}",
    "train.py",
    "--micro-batch",
    "{micro_batch}",
    "--accumulate",
    "{num_microbatches}",
]
ACCELERATE = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: NO_WRAP, fsdp_reshard_after_forward: true}
num_machines: 1
num_processes: 8
mixed_precision: 'no'
use_cpu: true
"""
(KNOBS,), (OBJECTIVE,) = ([text for text in blocks("own-program", "toml") if key in text] for key in ("num_workers", "[objective]"))
OWN = [text for text in blocks("own-program", "toml") if text not in (KNOBS, OBJECTIVE)]
(SPACE,) = blocks("reference/search-space-files", "toml")
PLAIN = """
import os, sys
for step in range(6):
    print(f"step {step}: 85.3 ms, latency: {step + 1}", sys.argv[1:], os.environ.get("MALLOC_ARENA_MAX"), flush=True)
"""


def test_the_keys_on_the_page_of_training_are_those_of_job_files():
    fragments = [tomllib.loads(text)["training"] for text in blocks("training", "toml")]
    assert {key for fragment in fragments for key in fragment} == {"corpus", "tokens", "token_dtype", "init_from"}
    for fragment in fragments:
        TrainingTable.model_validate(fragment)


def job_of(page):
    """Return the first job of a page; further blocks are parts of others."""
    return blocks(page, "toml")[0]


@pytest.fixture
def run_plain(folder, run_trial_of):
    """Run a job of a program without torch that prints six steps, with these values of knobs."""
    (folder / "train.py").write_text(PLAIN)

    def run(text, **knobs):
        (folder / "job.toml").write_text(text)
        problem = load_job(folder / "job.toml")
        chosen = next(each for each in problem.candidates() if all(each[name] == value for name, value in knobs.items()))
        return run_trial_of(problem, chosen, steps=STEPS)

    return run


def test_no_page_with_a_job_is_forgotten():
    pages = {
        page.stem for page in (DOCS / "how-to").glob("*.md") if any("[command" in text for text in blocks(f"how-to/{page.stem}", "toml"))
    }
    assert pages == {"own-program", "accelerate", "lightning", "megatron-lm", "torchtitan", "harmless-trials"}


def test_the_libraries_of_the_jobs_are_installed_with_the_tests():
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    declared = {re.match(r"[\w-]+", each)[0] for each in (*project["dependencies"], *project["optional-dependencies"]["dev"])}
    texts = [path.read_text() for path in PROGRAMS.glob("*.py")]
    imported = {name for text in texts for name in re.findall(r"^(?:import|from) (\w+)", text, flags=re.MULTILINE)}
    own = {"oppa_client", *(path.stem for path in PROGRAMS.glob("*.py"))}
    libraries = imported - own - sys.stdlib_module_names
    assert libraries == {"torch", "lightning", "transformers"}
    assert libraries | {"accelerate"} <= declared


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "microbatches"),
    [
        *(("megatron-lm", 4), ("torchtitan", 1)),
        *(pytest.param("megatron-lm", 1, marks=NIGHTLY), pytest.param("torchtitan", 4, marks=NIGHTLY)),
    ],
)
def test_what_megatron_and_torchtitan_print_is_read(run_job, page, microbatches):
    result, _ = run_job(job_of(page), microbatches=microbatches, steps=STEPS, ranks=2 if page == "megatron-lm" else 1)
    assert (result.outcome, result.steps, len(result.losses)) == ("completed", STEPS, STEPS), result.traceback


@pytest.mark.slow
@pytest.mark.parametrize("microbatches", [pytest.param(1, marks=NIGHTLY), 4])
def test_the_trainer_of_transformers_is_tuned_below_accelerate(run_job, folder, microbatches):
    (folder / "accelerate.yaml").write_text(ACCELERATE)
    (folder / "hf_train.py").rename(folder / "train.py")
    result, printed = run_job(job_of("accelerate"), microbatches=microbatches, steps=STEPS)
    assert (result.outcome, result.steps, len(result.losses)) == ("completed", STEPS, STEPS), result.traceback
    assert printed.count("{'loss':") == STEPS
    assert f"--gradient_accumulation_steps {microbatches} " in printed.splitlines()[0]
    assert "fsdp_reshard_after_forward: false" in (folder / "trial" / "accelerate.yaml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("microbatches", "steps"), [pytest.param(1, 20, marks=NIGHTLY), (4, 6)])
def test_batches_of_lightning_become_optimizer_steps(run_job, folder, monkeypatch, microbatches, steps):
    """Each epoch has ten batches: accumulation over 4 leaves two, and the third optimizer step of the epoch is smaller.

    One rank is enough, as only rank 0 has a bar.
    """
    monkeypatch.setenv("EPOCHS", str(3 if microbatches == 4 else 2))
    (folder / "lightning_train.py").rename(folder / "train.py")
    result, printed = run_job(job_of("lightning"), microbatches=microbatches, steps=30, ranks=1)
    assert (result.outcome, result.steps) == ("completed", steps), result.traceback
    assert f"took {steps if microbatches == 1 else 9} steps" in printed


@pytest.mark.slow
@pytest.mark.parametrize(("microbatches", "ranks"), [pytest.param(1, 1, marks=NIGHTLY), (4, 1), pytest.param(4, 2, marks=NIGHTLY)])
def test_the_callback_for_lightning_reports_optimizer_steps(run_job, folder, monkeypatch, microbatches, ranks):
    (callback,) = [each for each in blocks("lightning", "python") if "open_trial" in each]
    (folder / "reporting.py").write_text(callback)
    (folder / "lightning_train.py").rename(folder / "train.py")
    monkeypatch.setenv("EPOCHS", "4")
    monkeypatch.setenv("CALLBACK", "reporting")
    job = job_of("lightning").replace('[command.steps]\nformat = "lightning"', "")
    result, printed = run_job(job, microbatches=microbatches, steps=STEPS, ranks=ranks)
    assert (result.outcome, result.steps) == ("completed", STEPS), result.traceback
    assert f"took {STEPS} steps" in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "first"),
    [
        pytest.param(text, first, id=f"{number}-{first}", marks=[NIGHTLY] * (number % 2 != first))
        for number, text in enumerate(OWN)
        for first in (0, 1)
    ],
)
def test_every_way_to_tell_steps_of_a_program_of_ones_own(run_job, folder, monkeypatch, text, first):
    """The program takes fewer steps than a trial has, and ends by itself: each of them is counted, and nothing else.

    One rank is enough: the next test has two.
    """
    (folder / "settings.json").write_text('{"train": {"micro_batch": 1, "accumulate": 1, "reshard": true}}')
    tell = "bar" if "batches_per_step" in text else "line" if "pattern" in text else "report"
    for name, value in {"TELL": tell, "FIRST": first, "STEPS": STEPS}.items():
        monkeypatch.setenv(name, str(value))
    result, printed = run_job(JOB + text, microbatches=4, steps=STEPS + 4, argv=[] if "argv" in text else TRAIN, ranks=1)
    assert (result.outcome, result.steps) == ("completed", STEPS), result.traceback
    assert f"rank 0 took {STEPS} steps" in printed


@pytest.mark.slow
def test_ranks_that_torchrun_prefixes_are_one_program_in_epochs_of_one_step(run_job, monkeypatch):
    """Each of two ranks prints `step 1` six times."""
    for name, value in {"TELL": "ranks", "FIRST": 1, "STEPS": STEPS, "EPOCH": 1}.items():
        monkeypatch.setenv(name, str(value))
    (text,) = (each for each in OWN if 'pattern = "step' in each)
    result, printed = run_job(JOB + text, microbatches=4, steps=STEPS + 4, argv=["torchrun", "--tee", "3", *TRAIN[1:]])
    assert (result.outcome, result.steps) == ("completed", STEPS), result.traceback
    assert printed.count("[default1]:step 1 took") == printed.count("[default0]:step 1 took") == STEPS


def test_knobs_of_ones_own_reach_the_program(run_plain):
    result, printed = run_plain(KNOBS, num_workers=8, malloc_arenas=2)
    assert (result.outcome, result.steps, set(result.step_times_s)) == ("completed", STEPS, {0.0853})
    assert "['--workers', '8'] 2" in printed


def test_a_number_that_a_program_prints_is_its_objective(run_plain):
    result, _ = run_plain('cluster = {devices_per_host = 1}\n[command]\nargv = ["python", "train.py"]\n' + OBJECTIVE)
    assert (result.outcome, result.step_times_s) == ("completed", (1.0, 2.0, 3.0, 4.0, 5.0, 6.0))


def test_a_search_space_file_of_ones_own_is_read(tmp_path):
    (tmp_path / "mine.toml").write_text(SPACE)
    job = 'model = {preset = "tiny-1m"}\nbatch = {global_batch = 8}\ncluster = {devices_per_host = 4, memory_limit = "1 GiB"}\n'
    (tmp_path / "job.toml").write_text(job + '[space]\nname = "./mine.toml"\n[command]\nargv = ["torchrun", "pretrain_gpt.py", "{tp}"]\n')
    every = list(load_job(tmp_path / "job.toml").candidates())
    assert {(each["cp"], each["nccl_algorithm"]) for each in every} == {(cp, name) for cp in (1, 2, 4) for name in ("Ring", "Tree")}


def test_the_lines_that_report_are_those_of_the_program_that_is_tested(folder):
    (example,) = blocks("own-program", "python")
    program = (folder / "train.py").read_text()
    for line in example.splitlines():
        assert line.split("  #")[0].removesuffix("open_trial()") in program or line == "..."


def test_the_check_of_gradient_statistics_runs_as_it_is_shown(capsys):
    (example,) = [each for each in blocks("own-trainer", "python") if "check_gradient_statistics" in each]
    exec(example, {})
    assert float(capsys.readouterr().out.removeprefix("squared norms differ by ")) < 1e-4


def test_nothing_of_the_tests_own_environment_is_needed():
    assert "TELL" not in os.environ
