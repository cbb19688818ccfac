"""Compare the simulator with published measurements.

Some of its constants were chosen by hand with these very runs in sight, not by a fit; their `source` states it. The comparison therefore
shows how well few constants explain many runs. It does not show how well the simulator predicts runs that nobody had seen.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from experiments import published
from experiments.lib.prediction_error import all_reduce_section, error, skipped, task_section, task_table
from oppa import catalog
from oppa.bench.tasks import load_suite
from oppa.pipeline.execution import Times, execute
from oppa.pipeline.schedules import build_schedule
from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.problem.problem import Problem
from oppa.report.record import Section
from oppa.simulator.collectives import all_reduce_s
from oppa.simulator.hardware import load_hardware
from oppa.simulator.simulator import Simulator
from oppa.simulator.topology import Topology

STAGE_TIMES, SCHEDULES = "pipeline_stage_times.csv", "pipeline_schedules_measured.csv"
FILES = {
    **{name: published.FILES[name] for name in (published.NANOTRON, published.RECOMPUTATION, published.ALL_REDUCES)},
    STAGE_TIMES: "profiled times of pipeline stages (Qi et al. 2024, table 9)",
    SCHEDULES: "bubble rates of pipeline schedules (Qi et al. 2024, tables 5 and 8)",
}
KNOWN_SCHEDULES = {"1F1B": "1f1b", "1F1B-I": "interleaved", "ZB-H1": "zb-h1", "ZB-H2": "zb-h2"}
LAYERS_AND_ENDS = {"1.5B": 24, "6.2B": 32, "14.6B": 48, "28.3B": 64}
"""Layers of the Zero Bubble paper's models, embedding and head counted as one each; if interleaved, each is a chunk."""


def simulator() -> list[Section]:
    """Compare the simulator with nanotron, Megatron-LM, NCCL and the Zero Bubble paper; if data are missing, one section lists them."""
    if lacking := published.missing(FILES):
        return [skipped("simulator", lacking)]
    runs = simulated_runs()
    return [_tasks(runs), _fitting(runs), _recomputation(), _all_reduces(), _bubbles()]


def simulated_runs() -> pd.DataFrame:
    """Return every run of nanotron with the simulator's `predicted_step_time_s`, `predicted_memory_bytes` and `fits`."""
    problems = {task.name: task.problem for task in load_suite("replay")}
    runs = published.nanotron_rows().groupby(["model", "nodes"])
    return pd.concat([_simulated(group, problems[f"{model}-{hosts}"]) for (model, hosts), group in runs])


def recomputation() -> pd.DataFrame:
    """Return the iterations of Megatron-LM with `ratio`, simulated over measured step time."""
    runs = published.recomputation_rows()
    return runs.assign(ratio=[_iteration_s(row) / row["step_time_s"] for row in runs.to_dict("records")])


def all_reduce_errors() -> pd.DataFrame:
    """Return `members`, `bytes` and `error` for NCCL all-reduces within a host of A100."""
    measured = published.all_reduces("a100")
    hardware = load_hardware("A100-80GB")
    topology = Topology(hardware, hosts=1)
    simulated = [
        hardware.host.collective_s + all_reduce_s(topology.group(members, 1), bytes_)
        for members, bytes_ in zip(measured["members"], measured["bytes"], strict=True)
    ]
    return measured.assign(error=error(pd.Series(simulated), measured["seconds"]))


def bubble_rates() -> pd.DataFrame:
    """Return published bubble rates together with those of oppa's schedules at the same stage times."""
    times = pd.read_csv(catalog.data_folder() / STAGE_TIMES)
    rates = pd.read_csv(catalog.data_folder() / SCHEDULES).dropna(subset="bubble_rate")
    rates = rates[rates["schedule"].isin(KNOWN_SCHEDULES)].merge(times, on=["model", "pp", "microbatches"])
    return rates.assign(executed=[_bubble_rate(row) for row in rates.to_dict("records")])


def _simulated(runs: pd.DataFrame, problem: Problem) -> pd.DataFrame:
    balanced, precision = problem.space.balanced_stages, problem.training.precision
    simulated = Simulator(problem.model, problem.cluster, precision=precision, framework="nanotron", balanced=balanced)
    configurations = [_configuration(row) for row in runs.to_dict("records")]
    return runs.assign(
        predicted_step_time_s=[simulated.step_time_s(each) for each in configurations],
        predicted_memory_bytes=[simulated.memory_bytes(each) for each in configurations],
        fits=[simulated.fits(each) for each in configurations],
    )


def _iteration_s(row: Mapping[Hashable, Any]) -> float:
    dimensions = {name: row[name] for name in (*published.DIMENSIONS, "gated")}
    model = Model(**dimensions, biases=True, tied=True, norm="layer", learned_positions=row["seq_len"])
    per_host, device = row["gpus_per_node"], row["device"]
    limit_bytes = load_hardware(device).device.memory_bytes
    cluster = Cluster(hosts=row["gpus"] // per_host, devices_per_host=per_host, device=device, memory_limit_bytes=limit_bytes)
    return Simulator(model, cluster, precision=row["precision"], framework="megatron-2022").step_time_s(_configuration(row))


def _configuration(row: Mapping[Hashable, Any]) -> Configuration:
    return Configuration(
        **{name: row[name] for name in ("dp", "tp", "pp", "model_chunks", "recompute")},
        global_batch=row["gbs"],
        micro_batch=row["mbs"],
        zero_stage=row["zero"],
        schedule="interleaved" if row["model_chunks"] > 1 else "1f1b",
    )


def _bubble_rate(row: Mapping[Hashable, Any]) -> float:
    ranks = int(row["pp"])
    chunks = LAYERS_AND_ENDS[row["model"]] // ranks if row["schedule"] == "1F1B-I" else 1
    found = build_schedule(KNOWN_SCHEDULES[row["schedule"]], ranks=ranks, micro_batches=int(row["microbatches"]), chunks=chunks)
    forward_s, input_s, weight_s, transfer_s = (row[f"T_{name}_ms"] / 1e3 for name in ("F", "B", "W", "comm"))
    stages = ranks * chunks
    times = Times(
        forward_s=[forward_s / chunks] * stages,
        backward_s=[(input_s if found.split else input_s + weight_s) / chunks] * stages,
        weight_s=[weight_s / chunks] * stages if found.split else [],
        transfer_s=[transfer_s] * (stages - 1),
    )
    return execute(found, times).bubble_rate


def _tasks(runs: pd.DataFrame) -> Section:
    return task_section(
        task_table(runs),
        title="Which configuration is fast: nanotron on H100, simulated",
        text=f"The {published.FILES[published.NANOTRON]}, against `priors/clusters/H100.toml`. A task is a model on a number of devices; "
        "its candidates are the runs that completed. On many hosts some runs take several times as long as similar ones, which is not "
        "simulated. A regret over 50% means that the choice was such a run.",
    )


def _fitting(runs: pd.DataFrame) -> Section:
    ran, legal = runs["status"] == published.RAN, runs["flag"].isna()
    kinds = {"ran": runs[ran], "failed": runs[~ran & legal]}
    return Section(
        title="Which configuration fits: nanotron on H100, simulated",
        text="`failed` includes failures other than out of memory, so not all of them can be predicted.",
        columns=("run / simulated", ">fits", ">does not fit", ">share predicted"),
        rows=[
            (kind, int(group["fits"].sum()), int((~group["fits"]).sum()), f"{(group['fits'] == (kind == 'ran')).mean():.1%}")
            for kind, group in kinds.items()
        ],
    )


def _recomputation() -> Section:
    runs = recomputation()
    errors = (runs["ratio"] - 1).abs()
    return Section(
        title="Large models: Megatron-LM on A100, simulated",
        text=f"The {published.FILES[published.RECOMPUTATION]}: median error {errors.median():.1%}, largest {errors.max():.1%}.",
        columns=("model", ">devices", "recomputation", ">measured, s", ">simulated / measured"),
        rows=[(row["model"], row["gpus"], row["recompute"], row["step_time_s"], f"{row['ratio']:.2f}") for row in runs.to_dict("records")],
    )


def _all_reduces() -> Section:
    return all_reduce_section(
        all_reduce_errors(),
        title="All-reduces on A100, simulated",
        text="NCCL all-reduces of 1 MB to 1 GB within a host (vTrain's measurements) determine the links' figures.",
    )


def _bubbles() -> Section:
    rates = bubble_rates()
    return Section(
        title="Bubble rates of pipeline schedules",
        text="The Zero Bubble paper's, computed from the stage times that it profiled (Qi et al. 2024, tables 5 and 9), and ours with the "
        "same times. How the paper cuts layers into chunks is not said; taken to be one layer each.",
        columns=("model", ">micro-batches", "schedule", ">published", ">here"),
        rows=[
            (row["model"], row["microbatches"], row["schedule"], f"{row['bubble_rate']:.4f}", f"{row['executed']:.4f}")
            for row in rates.to_dict("records")
        ],
    )
