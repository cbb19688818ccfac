"""A key of a program's configuration file is declared with a parameter, as a word of its launch line is."""

import functools
import json

import pytest

from oppa.errors import JobError
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.problem.trial_values import settings_of
from tests.problem import own_space


@pytest.fixture
def load(tmp_path):
    return functools.partial(own_space.load, tmp_path)


KEYED = """
extends = "deepspeed"
[parameters.coffee]
values = ["none", "one", "two"]
keys = { "kitchen.coffee" = "{coffee}", "kitchen.on" = { none = false, "*" = true }, "kitchen.cups" = { none = [], one = 1, two = 2 } }
"""
ASKED = "[space.parameters]\nzero_stage = [1, 3]\nhpz = [1, 2]\nzero_bucket_mb = [1, 4]\n"


def in_file(problem: Problem, configuration: Configuration) -> dict[str, object]:
    """The keys that a trial sets in the program's file."""
    (file,) = problem.launch_line(configuration).files
    return file.rewritten(settings_of(configuration, problem.training))


def test_a_knob_is_one_entry_where_the_framework_reads_a_file(load, tmp_path) -> None:
    """A parameter of DeepSpeed's that the job asks for, and an entry of one's own, set the keys that the search space declares."""
    (tmp_path / "ds.json").write_text("{}")
    file = '[command.files.ds]\npath = "ds.json"\n'
    problem = load(KEYED, ASKED + file, argv=["torchrun", "train.py", "--deepspeed_config", "{ds}", "--batch", "{micro_batch}"])
    files = [(each, in_file(problem, each)) for each in problem.candidates() if each.dp == 4]
    assert {found["zero_optimization.stage"] for _, found in files} == {1, 3}
    assert all(
        found.get("zero_optimization.zero_hpz_partition_size") == (each["hpz"] if each.zero_stage == 3 else None) for each, found in files
    )
    assert all(found["zero_optimization.reduce_bucket_size"] == each.zero_bucket_mb * 2**18 for each, found in files)
    kitchens = {tuple((key, value) for key, value in found.items() if key.startswith("kitchen")) for _, found in files}
    cups = [(("kitchen.cups", count),) for count in (1, 2)]
    made = [
        (("kitchen.coffee", name), ("kitchen.on", bool(more)), *more)
        for name, more in zip(("none", "one", "two"), [(), *cups], strict=True)
    ]
    assert kitchens == set(made)
    assert not any("overlap_comm" in key or "train_" in key for _, found in files for key in found), "nobody asked for these"
    assert Problem.from_dict(json.loads(json.dumps(problem.to_dict()))) == problem


def test_a_key_without_a_file_is_refused(load) -> None:
    with pytest.raises(JobError, match=r"is a key of the program's configuration file, and \[command.files\] names none") as raised:
        load(KEYED, ASKED)
    assert "[command.files.ds]" in raised.value.hint
