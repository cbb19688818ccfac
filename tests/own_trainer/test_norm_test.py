"""The norm test grows the batch of real trainers, from the gradients that they have measured."""

import re
from pathlib import Path

import pytest

from experiments.trainers.example_run import ExampleRun
from experiments.trainers.run import CLOSE, FSDP2, TRANSFORMERS
from oppa.training.run import ledger
from oppa.training.statistics.norm_test import ETA, required_batch
from tests.command_line import Oppa
from tests.own_trainer.own_runs import OwnRun
from tests.own_trainer.until import SPEEDS

pytestmark = pytest.mark.slow

REAL = [pytest.param(FSDP2, 1, id="fsdp2"), pytest.param(TRANSFORMERS, 0, marks=pytest.mark.nightly, id="transformers")]
"""Trainers, with the layout of each: FSDP2, and no recomputation."""
OVER_WORKERS = (str(Path(__file__).with_name("over_workers.py")),)
SAMPLES = 3200
"""Samples of a training: enough steps for a service that starts slowly."""
HINT = 'give it `oppa.training.GradientStatistics(model, over="workers")`'


def trained(integration, folder, policy, layout, wrapper=()):
    """Train an example on two ranks under a policy; return its valid lines."""
    run = ExampleRun(integration, folder / "run", samples=SAMPLES, wrapper=wrapper)
    table = run.table({(16, layout): 1.0, (32, layout): 0.9, (64, layout): 0.8})
    result = run.train(run.begin(layout) + ",global_batch=16", table=table, policy=policy)
    assert result.finished and ledger.require_whole(result.lines) == SAMPLES, result.outcome.last
    return result.lines


def require_grown(lines, ratio, eta):
    """Check that each change of the batch is what the ratio of a step requires that was measured under the batch before."""
    changes = [line for line in lines if line["event"] == ledger.CHANGED]
    steps = [line for line in lines if line["event"] == ledger.STEP]
    assert changes and steps[0]["global_batch"] == 16 < steps[-1]["global_batch"]
    for change in changes:
        batch = change["before"]["global_batch"]
        required = int(re.search(r"the norm test requires ([\d,]+)", change["reason"])[1].replace(",", ""))
        measured = [line[ratio] for line in steps if line["global_batch"] == batch and line[ratio] is not None]
        assert required > batch and required in [required_batch(each, eta) for each in measured]
        assert change["after"]["global_batch"] == 2 * batch


@pytest.mark.parametrize(("integration", "layout"), REAL)
def test_it_grows_the_batch_of_a_real_trainer_from_what_that_measures(integration, layout, tmp_path):
    lines = trained(integration, tmp_path, "norm-test,interval=2", layout)
    require_grown(lines, "variance_ratio", ETA["unbiased"])
    steps = [line for line in lines if line["event"] == ledger.STEP]
    assert all(line["variance_ratio"] is None for line in steps if line["step"] % 2), "every other step is measured"
    assert [line["loss"] for line in steps] == pytest.approx(integration.losses(steps), abs=CLOSE)


@pytest.mark.nightly
def test_as_written_it_grows_the_batch_of_a_trainer_that_compares_workers(tmp_path):
    lines = trained(FSDP2, tmp_path, "norm-test-paper,eta=0.01,growth=2", 1, OVER_WORKERS)
    require_grown(lines, "worker_variance_ratio", 0.01)


def test_as_written_it_is_said_once_to_lack_workers_if_the_trainer_compares_micro_batches(tmp_path):
    own = OwnRun(tmp_path, "--noise", "5000", samples=1600)
    words = ["--run", own.run, "--table", own.table(tmp_path / "t", SPEEDS), "--policy", "norm-test-paper", "--", *own.command]
    done = Oppa(tmp_path)("train", own.job, "global_batch=8", *words)
    assert done.stderr.count(HINT) == 1 and "`statistics" not in done.stderr
    assert {line["global_batch"] for line in own.events(ledger.STEP)} == {8}
