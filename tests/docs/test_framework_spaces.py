"""The jobs of the page on framework spaces: each launch line, which names nothing to tune, gets the options of its framework and runs."""

import shlex

import pytest

from oppa.problem.job import load_job
from oppa.problem.trial_values import settings_of
from tests.docs.conftest import CPUS, blocks
from tests.sampling import nightly
from tests.tuning.formats.launch_lines import line

TITAN, FLOAT8, TRANSFORMERS, LIGHTNING, DEEPSPEED = blocks("framework-spaces", "toml")
*LINES, BY_FILE = [shlex.split(text)[4:] for text in blocks("framework-spaces", "sh")]
JOBS = dict(zip(("torchtitan", "transformers", "lightning"), zip((TITAN, TRANSFORMERS, LIGHTNING), LINES, strict=True), strict=True))
STEPS = 6


@pytest.fixture
def problem(folder):
    """The job of a framework, also with more, and with its cluster or with this many CPU ranks."""

    def load(name, *, ranks=0, more=""):
        text, argv = JOBS[name]
        (folder / "job.toml").write_text(text + more)
        smaller = [f"cluster={{devices_per_host={ranks}, device='{CPUS['device']}', memory_limit='{CPUS['memory_limit']}'}}"]
        return load_job(folder / "job.toml", argv=argv, settings=["batch.global_batch=8", *smaller] if ranks else [])

    return load


def test_a_job_has_at_most_eight_lines() -> None:
    assert all(len(text.strip().splitlines()) <= 8 for text, _ in JOBS.values())


@pytest.mark.parametrize("name", JOBS)
def test_a_plain_launch_line_is_completed(name, problem) -> None:
    loaded = problem(name)
    candidates = loaded.candidates()
    assert "{" not in " ".join(loaded.command.argv)
    assert len({tuple(line(loaded, each)) for each in candidates}) == len(candidates) > 10


def test_float8_is_another_function(problem) -> None:
    loaded = problem("torchtitan", more=FLOAT8)
    for each in loaded.candidates():
        words = line(loaded, each)
        assert words[words.index("--config") + 1] == "llama3_8b"
        last = [word for word in words if word.startswith("--config=")]
        assert last == ([] if each["float8"] == "none" else ["--config=llama3_8b_float8"])
    assert len({each["float8"] for each in loaded.candidates()}) == 2


def test_a_file_gets_the_keys_of_what_the_job_lists(folder) -> None:
    (folder / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    (folder / "job.toml").write_text(DEEPSPEED)
    loaded = load_job(folder / "job.toml", argv=BY_FILE)
    candidates = loaded.candidates()
    keys = [loaded.launch_line(each).files[0].rewritten(settings_of(each, loaded.training)) for each in candidates]
    assert len({tuple(sorted(found.items())) for found in keys}) == len(candidates) > 10
    assert set().union(*keys) == {
        *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization.stage"),
        *("zero_optimization.overlap_comm", "zero_optimization.zero_hpz_partition_size"),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values"),
    [("torchtitan", {"micro_batch": 2}), *nightly(("transformers", {"micro_batch": 1, "recompute": "none"}))],
)
def test_a_completed_launch_line_runs(name, values, problem, folder, run_trial_of) -> None:
    (folder / "hf_train.py").rename(folder / "train.py")
    loaded = problem(name, ranks=2)
    asked = {"zero_stage": 0, "dp": 2, **values}
    chosen = next(each for each in loaded.candidates() if all(each[key] == value for key, value in asked.items()))
    result, printed = run_trial_of(loaded, chosen, steps=STEPS)
    assert (result.outcome, result.steps) == ("completed", STEPS), (result.traceback, printed)
