"""Shipped examples train on two hosts. Two torchruns emulate them, with the variables that oppa sets on each host."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from oppa_client import run_files
from oppa_client.lightning.ranks import with_ranks

from oppa.control.own_trainer.contract import have_all_started
from tests.client.by_hand import TOTAL
from tests.client.libraries import DEEPSPEED, TORCHTITAN, deepspeed_python
from tests.own_trainer.folders import ask_to_leave, prepare, reported
from tests.own_trainer.living import wait_for
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
OUTPUT = ("transformers", "torchtitan")
"""Examples whose option for the folder of checkpoints is `--output`; that of the others is `--checkpoints`."""


@contextlib.contextmanager
def started(hosts: int, library: str, folder: Path, saved: Path) -> Iterator[None]:
    """Start the example of a library with one rank on each host; at the end, wait until it has trained."""
    python = deepspeed_python() if library == "deepspeed" else sys.executable
    words = [python, "-m", "torch.distributed.run", "--nproc-per-node", "1"]
    words += [str(ROOT / "examples" / f"{library}_trainer.py"), "--output" if library in OUTPUT else "--checkpoints", str(saved)]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "client"), os.environ.get("PYTHONPATH", "")])
    shared = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "OPPA_TRIAL": str(folder)}
    meeting = {"PET_NNODES": str(hosts), "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(free_port())}
    each_host = [{**os.environ, **shared, **meeting, "PET_NODE_RANK": str(host)} for host in range(hosts)]
    run = [subprocess.Popen(words, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for own in each_host]
    try:
        yield
        printed = [each.communicate(timeout=280)[0] for each in run]
    finally:
        for each in run:
            each.kill()
            each.wait()
    assert [each.returncode for each in run] == [0] * hosts, printed[0][-3000:]


def samples(folder: Path) -> int:
    return sum(line["samples"] for line in reported(folder))


@pytest.mark.slow
@pytest.mark.parametrize(
    "library",
    [
        "accelerate",
        pytest.param("lightning", marks=pytest.mark.nightly),
        pytest.param("transformers", marks=pytest.mark.nightly),
        pytest.param("deepspeed", marks=[*DEEPSPEED, pytest.mark.nightly]),
        pytest.param("torchtitan", marks=TORCHTITAN),
    ],
)
def test_an_example_trains_on_two_hosts_and_goes_on_on_one_that_started_early(library, tmp_path):
    first, second, saved = tmp_path / "first", tmp_path / "second", tmp_path / "saved"
    ask_to_leave(prepare(first, ranks=2))
    with started(2, library, first, saved):
        pass
    terms = prepare(second, before=first) / run_files.ATTEMPT
    held = terms.rename(second / "held")
    run_files.write(second, run_files.HOLD, {})
    with started(1, library, second, saved):
        wait_for(lambda: have_all_started(second), limit_s=240.0)
        assert not (second / run_files.MEASUREMENTS).exists()
        held.rename(terms)
    able = run_files.read(second, run_files.ABILITIES)["abilities"]
    assert able["elastic"] and able["early_start"]
    assert 0 < samples(first) < TOTAL and samples(first) + samples(second) == TOTAL


@pytest.mark.parametrize(
    ("stated", "wanted"),
    [
        ({}, {"devices": 2, "num_nodes": 3}),
        ({"devices": "auto", "num_nodes": 1}, {"devices": 2, "num_nodes": 3}),  # as LightningCLI states them
        ({"devices": -1}, {"devices": 2, "num_nodes": 3}),
        ({"devices": 1}, {"devices": 2, "num_nodes": 3}),
        ({"devices": 2}, {"devices": 2, "num_nodes": 3}),
        ({"devices": [4, 5]}, {"devices": [4, 5], "num_nodes": 3}),
        ({"devices": "4,5"}, {"devices": "4,5", "num_nodes": 3}),
        ({"devices": 2, "num_nodes": 3}, {"devices": 2, "num_nodes": 3}),
        ({"devices": 6}, {"devices": 6}),
    ],
)
def test_lightning_has_the_ranks_that_torchrun_started(stated, wanted, monkeypatch):
    assert with_ranks(stated) == stated
    for name, value in {"TORCHELASTIC_RUN_ID": "tests", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert with_ranks({**stated, "max_epochs": 3}) == {**wanted, "max_epochs": 3}
