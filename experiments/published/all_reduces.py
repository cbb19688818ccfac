"""Read the times of NCCL's all-reduces that vTrain's authors measured."""

import pandas as pd

from oppa.bench.published.files import ALL_REDUCES, read_file


def all_reduces(gpu: str) -> pd.DataFrame:
    """Return the all-reduces of one kind of device, with columns `members`, `bytes` and `seconds`."""
    measured = read_file(ALL_REDUCES)
    measured = measured[measured["gpu"] == gpu].reset_index(drop=True)
    return pd.DataFrame({"members": measured["n_gpus"], "bytes": measured["bytes"], "seconds": measured["time_oop_ns"] * 1e-9})
