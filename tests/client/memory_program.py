"""Report a number of bytes of each rank as a loop reports its peak of memory. The arguments are the folder, the rank and all numbers."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from oppa_client.loop.statistics import over_ranks


def main():
    folder, rank, values = Path(sys.argv[1]), int(sys.argv[2]), [int(value) for value in sys.argv[3:]]
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=len(values))
    (folder / f"{rank}.txt").write_text(str(over_ranks(values[rank], torch.device("cpu"))))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
