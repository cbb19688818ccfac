"""The example for GPUs at a small size on CPUs: its table, and a run whose batch changes."""

import json
import sys
import tomllib
from pathlib import Path

import pytest

from oppa import api
from oppa.training.run import ledger

pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.nightly]

JOB = Path(__file__).parents[2] / "examples" / "transformers_gpu.toml"
SMALL = ("--layers", "2", "--hidden", "64", "--heads", "4", "--ffn", "128", "--length", "32", "--use_cpu", "true")


def settings() -> list[str]:
    """Changes of the job: a rank on a CPU, a small model, and the Python of this process."""
    (_, *words) = tomllib.loads(JOB.read_text())["command"]["argv"]
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", *words, *SMALL]
    cpu = ["cluster.device='CPU'", "cluster.memory_limit='4 GiB'", "limits.device_lock=false", "space.parameters.micro_batch=[8]"]
    return [f"command.argv={json.dumps(argv)}", *cpu, "space.parameters.recompute=['none', 'full']", "train.samples=640", "train.damping=2"]


def test_it_is_profiled_and_its_batch_grows(tmp_path: Path) -> None:
    problem = api.load_job(JOB, settings=settings())
    table = api.profile(problem, global_batch=[8, 16, 32], exhaustive=True, table=tmp_path / "table")
    assert {(row.configuration.global_batch, row.configuration.recompute) for row in table.table.rows} == {
        (batch, recompute) for batch in (8, 16, 32) for recompute in ("none", "full")
    }
    changes = [*settings(), "train.advise=false"]
    begin = "global_batch=8,micro_batch=8,recompute=none"
    result = api.train(JOB, begin, run=tmp_path / "run", settings=changes, table=table.folder, policy="stagewise")
    steps = [line for line in result.lines if line["event"] == ledger.STEP]
    assert result.finished and ledger.require_whole(result.lines) == 640
    assert steps[0]["global_batch"] == 8 < steps[-1]["global_batch"] and steps[-1]["loss"] < steps[0]["loss"]
