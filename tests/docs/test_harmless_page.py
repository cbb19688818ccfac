"""The job of docs/how-to/harmless-trials.md changes what the page says, and its paths are what it says."""

import shlex

import pytest

from oppa.errors import JobError
from oppa.problem.job import load_job
from tests.docs.conftest import blocks

JOB, PATHS = blocks("harmless-trials", "toml")
(LINE,) = (shlex.split(text)[4:] for text in blocks("harmless-trials", "sh") if text.startswith("oppa tune"))
(REFUSED,) = blocks("harmless-trials", "text")
DEVICES = 'cluster = { devices_per_host = 1, memory_limit = "1 GiB" }\n'


@pytest.fixture
def load(folder):
    def write_and_load(text, argv):
        (folder / "job.toml").write_text(text)
        return load_job(folder / "job.toml", argv=argv)

    return write_and_load


def test_the_job_of_the_page_keeps_the_users_words_for_the_winner(load):
    problem = load(JOB, LINE)
    assert problem.restored.command.argv == tuple(LINE)
    assert "out" not in problem.command.argv and "wandb" not in problem.command.argv


def test_the_paths_of_the_page_are_what_it_says(load):
    line = "train {num_workers=1:1,2} --weights w.pt --init-from a/b --index-cache i/c --save-every 10"
    words = load(DEVICES + PATHS, shlex.split(line)).command.argv
    redirected, kept, shared = (
        ("--weights", "{folder}/writes/weights.pt"),
        ("--init-from", "a/b"),
        ("--index-cache", "{cache_folder}/index-cache"),
    )
    assert words == ("train", "{num_workers}", *redirected, *kept, *shared)


def test_the_refusal_is_the_one_on_the_page(load):
    with pytest.raises(JobError) as error:
        load(f"{DEVICES}command.harmless = true", shlex.split("train {num_workers=1:1,2} --weights w.pt"))
    assert REFUSED.strip() == f"error: {error.value.message}"
