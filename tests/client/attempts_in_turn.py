"""Run attempts one after the other on the same ranks, as their start takes longer than they do."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from oppa_client import ContractError


def folders_and_options() -> list[tuple[str, dict]]:
    """Read the command line: folder and options of each attempt, one after the other."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", type=json.loads)
    return parser.parse_args().cases


def run_in_turn(cases: list[tuple[str, dict]], run: Callable[[Path, dict], None]) -> None:
    """Run each attempt; the words of one that is refused stand in its folder."""
    dist.destroy_process_group = lambda *_: None  # the ranks go on with the next attempt
    for folder, options in cases:
        try:
            run(Path(folder), options)
        except ContractError as error:
            torch.save({"refused": str(error)}, Path(folder) / f"seen-{dist.get_rank()}.pt")
        dist.barrier()
