"""The loop and the measurement of docs/how-to/own-trainer.md run as they are shown, also in a last step in which a rank has no sample."""

import ast
import json
import re
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.own_trainer.folders import LAYOUT, attempt, reported

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "own-trainer.md"
SAMPLES = [[[0, 1], [2, 3], [8, 9], [10, 11], [16]], [[4, 5], [6, 7], [12, 13], [14, 15], []]]
"""Samples of each micro-batch of both ranks."""
EXAMPLE = (PAGE.parents[2] / "examples" / "own_trainer.py").read_text()
EVERY_BLOCK = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
PIECES = [block for block in EVERY_BLOCK if block in EXAMPLE or textwrap.indent(block, " " * 8) in EXAMPLE]
"""Blocks that are parts of the example, whose own tests run them."""
BLOCKS = [block for block in EVERY_BLOCK if block not in PIECES]


@pytest.fixture(params=[0, 1])
def names(request, tmp_path, monkeypatch):
    """Return what the page's code uses, on one of two ranks; the last of the 17 samples is a step of its own."""
    attempt(tmp_path, total_samples=17)
    (tmp_path / "trial.json").write_text(json.dumps({"configuration": {**LAYOUT, "dp": 2}}))
    for name, value in {"OPPA_TRIAL": str(tmp_path), "RANK": str(request.param), "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which `open_run` replaces
    model = nn.Linear(4, 1)
    taken, gradients = [], []

    optimizer = torch.optim.SGD(model.parameters())
    optimizer.register_step_pre_hook(lambda *_: gradients.append(model.bias.grad.item()))

    def read(numbers):
        taken.append(list(numbers))
        return torch.ones(len(numbers), 4)

    def save():
        checkpoint = tmp_path / "checkpoint"
        checkpoint.mkdir(exist_ok=True)
        return checkpoint

    values = {"model": model, "optimizer": optimizer, "rank": request.param, "ranks": 2, "taken_numbers": taken, "gradients": gradients}
    values |= {"read": read, "summed_loss": lambda inputs: model(inputs).sum(), "save": save, "load": None}
    values |= {"due": lambda progress: progress == 8, "mean_loss": 1.0}
    values["sum_over_ranks"] = lambda samples: samples + len(values["plan"].share(1 - request.param, 2))
    return values


def run_page(names, code):
    exec(compile(code, str(PAGE), "exec"), names)


def test_the_loop_and_its_measurement_take_every_sample_and_leave(names, tmp_path):
    loop, measurement, _ = BLOCKS  # tests/docs/test_jobs.py runs the third
    begin, before_backward, after_backward = measurement.split("...\n")
    run_page(names, begin)
    forward = names["summed_loss"]
    names |= {"summed_loss": lambda inputs: (run_page(names, before_backward), forward(inputs))[1]}
    names["optimizer"].register_step_pre_hook(lambda *_: run_page(names, after_backward.splitlines()[0]))  # without the second run.step
    run_page(names, loop)
    assert names["run"].plan.progress == 17 and names["run"].leaving.reason == "finished"
    assert (tmp_path / "left.json").exists() == (tmp_path / "saved-1.json").exists() == (names["rank"] == 0)
    assert names["taken_numbers"] == SAMPLES[names["rank"]]


def test_the_pieces_of_the_example_that_the_page_shows_are_those_of_its_rate_and_its_saves():
    defined = {each.name for piece in PIECES for each in ast.parse(piece).body if isinstance(each, ast.FunctionDef)}
    assert len(PIECES) == 3 and defined == {"learning_rate", "due", "state_saved"}


def test_samples_that_the_data_lack_are_not_reported(names, tmp_path):
    read = names["read"]
    names["read"] = lambda numbers: read(numbers)[: len(numbers) - (numbers.start in (2, 6))]  # one sample of a rank's first step is lost
    run_page(names, BLOCKS[0].replace(", noise=statistics.report()", ""))
    assert names["rank"] or [line["samples"] for line in reported(tmp_path)] == [7, 8, 2]


def test_the_average_of_the_gradients_over_ranks_is_that_of_the_mean_loss(names):
    run_page(names, BLOCKS[0].replace(", noise=statistics.report()", ""))
    samples = [[4, 4, 1], [4, 4, 0]][names["rank"]]
    assert names["gradients"] == [2 * own / batch for own, batch in zip(samples, (8, 8, 1), strict=True)]
