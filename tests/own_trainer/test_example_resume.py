"""The example of an own trainer resumes random numbers, rate and evaluation, also from a checkpoint that a thread has written."""

import json
import re

import pytest
from oppa_client import run_files

from tests.client.by_hand import run_ranks
from tests.own_trainer import example_program
from tests.own_trainer.folders import REFERENCE, TOTAL, prepare, reported
from tests.sampling import nightly

pytestmark = pytest.mark.slow

WORDS = ["--width", "16", "--dropout", "0.3", "--warm-up", "24", "--decay", str(TOTAL), "--evaluate-every", "24"]
LAYOUTS = {"ddp": (2, []), "hsdp": (4, ["--shard", "--replicate", "2"])}


def train(folder, layout, *words, before=None, state=None, **options):
    """Train an attempt of a fixed batch; return each step's samples, loss and rate, and each evaluation."""
    count, of_layout = LAYOUTS[layout]
    prepare(folder, ranks=count, before=before, **(state or {}))
    given = {"asked": {}, "leave_at": None, "first_number": 2, **options}
    run_ranks(folder, count, program=example_program, words=[*WORDS, *of_layout, *words], **given)
    steps = [(line["step"], line["samples"], line["loss"], line["learning_rate"]) for line in reported(folder)]
    return steps, re.findall(r"evaluation after (\d+) samples: loss (.+)", (folder / "seen.log").read_text())


@pytest.mark.parametrize("layout", [*nightly("ddp"), "hsdp"])
def test_a_run_that_is_resumed_in_mid_epoch_equals_one_that_never_stopped(tmp_path, layout):
    steps, evaluated = train(tmp_path / "whole", layout)
    first, before = train(tmp_path / "first", layout, leave_at=4)
    second, after = train(tmp_path / "second", layout, before=tmp_path / "first")
    assert 0 < len(first) < len(steps) and first + second == steps
    assert before and after and before + after == evaluated and [int(at) for at, _ in evaluated] == [24, 48, 72, 96]
    rates = [rate for *_, rate in steps]
    assert rates.index(max(rates)) == 2 and rates[2:] == sorted(rates[2:], reverse=True)


def test_dropout_changes_the_losses_and_a_rank_without_random_numbers_begins_with_its_own(tmp_path):
    steps, _ = train(tmp_path / "first", "ddp", leave_at=4)
    assert steps != train(tmp_path / "plain", "ddp", "--dropout", "0", leave_at=4)[0]
    checkpoint = json.loads((tmp_path / "first" / run_files.LEFT).read_text())["checkpoint"]
    names = sorted(path.name for path in (tmp_path / "first" / "trained").glob("*/random-*.pt"))
    assert names == ["random-0.pt", "random-1.pt"] and checkpoint.endswith("step-6")
    resumed, _ = train(tmp_path / "second", "hsdp", before=tmp_path / "first")
    assert sum(samples for _, samples, *_ in resumed) == TOTAL - 6 * REFERENCE


def test_a_checkpoint_that_a_thread_writes_is_stated_once_it_is_complete_and_has_the_state_of_its_step(tmp_path):
    every = ["--save-every", "32", "--async-save"]
    asked = {4: [16, 2]}
    steps, _ = train(tmp_path / "whole", "ddp", *every, asked=asked, writing_s=0.5)
    stated = [tuple(map(int, line.split())) for line in (tmp_path / "whole" / "stated.txt").read_text().splitlines()]
    assert min(stated)[0] == 4 and all(at > step for step, at in stated), "training goes on while a thread writes"
    state = json.loads((tmp_path / "whole" / run_files.SAVED.format(4)).read_text())
    assert (state["step"], state["samples"], state["plan"]["global_batch"]) == (4, 32, REFERENCE)
    resumed, _ = train(tmp_path / "resumed", "ddp", state={**state, "plan": {**state["plan"], "from_step": 4}}, asked=asked)
    assert resumed == steps[4:]
