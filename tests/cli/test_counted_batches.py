"""Gradient accumulation makes a step of several batches, also in a program whose bar or log counts batches."""

import json

import pytest

ACCUMULATED = """
import argparse, time

parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int)
parser.add_argument("--accum", type=int)
parser.add_argument("--count")
given = parser.parse_args()
batches = 4096 // given.bs
for batch in range(1, batches + 1):
    time.sleep(0.01 + 0.0005 * given.bs)
    if given.count == "steps" and batch % given.accum:
        continue
    done, total = (batch // given.accum, batches // given.accum) if given.count == "steps" else (batch, batches)
    if given.count == "mmengine":
        print(f"Epoch(train) [1][{batch}/{batches}]  lr: 1e-3  eta: 0:01:00  time: 0.1  loss: 2.5", flush=True)
    else:
        print(f"epoch 0:  12%|#   | {done}/{total} [00:01<00:09, 9.71it/s]", flush=True)
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def tuned(oppa):
    """Search the micro-batch of the program; return the finished command."""
    (oppa.folder / "program.py").write_text(ACCUMULATED)

    def run(count: str, *more: str, code: int = 0):
        limits = ("batch.global_batch=16", "limits.q_min=3", "limits.q_max=5", "limits.device_lock=false", "cluster.devices_per_host=1")
        settings = [word for each in (*limits, *more) for word in ("--set", each)]
        line = ("python3", "program.py", "--bs", "{micro_batch=4:2,4,16}", "--accum", "{num_microbatches}", "--count", count)
        return oppa("tune", *settings, "--json", "--", *line, code=code)

    return run


def test_a_bar_over_batches_ends_the_search_with_what_to_declare(tuned) -> None:
    ended = tuned("batches", code=2).stderr
    assert "the progress bar of the program counts batches" in ended and "1,024 in" in ended
    declared = ("command.steps.format=progress-bar", "command.steps.batches_per_step={num_microbatches}")
    assert all(f"--set {each}" in ended for each in declared)
    assert json.loads(tuned("batches", *declared).stdout)["best"]["configuration"]["micro_batch"] == 16


@pytest.mark.parametrize("count", ["steps", "mmengine"])
def test_a_bar_over_steps_and_a_format_that_counts_batches_need_no_declaration(count, tuned) -> None:
    done = tuned(count)
    assert json.loads(done.stdout)["best"]["configuration"]["micro_batch"] == 16
    counted = "each for an optimizer step" if count == "steps" else "of which `{num_microbatches}` make an optimizer step"
    assert counted in done.stderr
