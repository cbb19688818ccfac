"""The peak of memory that a trial reports is that of the rank with the largest one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from oppa_client.loop.statistics import over_ranks

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_each_rank_finds_the_largest_value(tmp_path: Path) -> None:
    values = ["5", str(3 << 40)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client"), "GLOO_SOCKET_IFNAME": "lo"}
    words = [sys.executable, str(Path(__file__).with_name("memory_program.py")), str(tmp_path)]
    ranks = [subprocess.Popen([*words, str(rank), *values], env=environment) for rank in range(len(values))]
    assert [rank.wait(timeout=60) for rank in ranks] == [0, 0]
    assert [(tmp_path / f"{rank}.txt").read_text() for rank in range(len(values))] == [values[1]] * 2


def test_a_process_alone_needs_no_group() -> None:
    assert over_ranks(5, torch.device("cpu")) == 5
