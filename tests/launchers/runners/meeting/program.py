"""Every rank waits until the study has two trials. Alone, the first one waits for ever."""

import json
import os
import time

import oppa_client


def run(folder, rank, world):
    """Steps that cost nothing, after the meeting."""
    trial = oppa_client.Trial(folder)
    if rank == 0:
        (folder / "devices.json").write_text(json.dumps([os.environ.get("CUDA_VISIBLE_DEVICES", "")]))
    while len(list(folder.parent.iterdir())) < 2:
        time.sleep(0.02)
    for _ in range(trial.spec["steps"]):
        if rank == 0 and not trial.step(0.01, memory_bytes=1 << 20):
            break
    return 0
