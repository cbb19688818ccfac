"""Wait as long as a made-up law has it: tensor parallelism costs, large micro-batches gain and need memory."""

import time

import oppa_client

SEQUENCE_BYTES = 20 << 20


def step_time_s(configuration):
    """Half as fast with each doubling of tp, faster with larger micro-batches."""
    return 0.02 * configuration["tp"] / configuration["micro_batch"] ** 0.5


def run(folder, rank, world):
    trial = oppa_client.Trial(folder)
    spec, configuration = trial.spec, trial.spec["configuration"]
    memory = SEQUENCE_BYTES * configuration["micro_batch"]
    if memory > spec["cluster"]["memory_limit_bytes"]:
        trial.end("out_of_memory", cause=f"needs {memory} bytes", rank=rank)
        return 1
    for _ in range(spec["steps"]):
        time.sleep(step_time_s(configuration))
        if rank == 0 and not trial.step(step_time_s(configuration), memory_bytes=memory):
            break
    return 0
