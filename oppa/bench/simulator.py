"""How near the simulator is to what others measured and published.

Some of its constants were chosen with these very runs in sight (their `source` says so), by hand and not by a fit: what follows shows how
well few constants explain many runs, not how well runs are foreseen that no one had seen.

Notation:
    Spearman    rank correlation of simulated and measured step times of a task
    regret      measured step time of the configuration that the simulator takes to be the fastest, over that of the fastest, minus 1
    error       |simulated / measured - 1|
"""

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from oppa.bench import published
from oppa.pipeline.execution import Times, execute
from oppa.pipeline.schedules import order
from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.report.record import Section
from oppa.simulator.collectives import all_reduce_s
from oppa.simulator.hardware import load_hardware
from oppa.simulator.simulator import Simulator
from oppa.simulator.topology import Topology

STAGE_TIMES, SCHEDULES = "pipeline_stage_times.csv", "pipeline_schedules_measured.csv"
FILES = {
    **published.FILES,
    STAGE_TIMES: "profiled times of pipeline stages (Qi et al. 2024, table 9)",
    SCHEDULES: "bubble rates of pipeline schedules (Qi et al. 2024, tables 5 and 8)",
}
KNOWN_SCHEDULES = {"1F1B": "1f1b", "1F1B-I": "interleaved", "ZB-H1": "zb-h1"}
LAYERS_AND_ENDS = {"1.5B": 24, "6.2B": 32}
"""Layers of the Zero Bubble paper's models, embedding and head counted as one each: interleaved, each is a chunk."""


def simulator() -> list[Section]:
    """The simulator against nanotron, Megatron-LM, NCCL and the Zero Bubble paper; says what is skipped where the data lacks."""
    if lacking := [name for name in FILES if not (published.folder() / name).is_file()]:
        return [_skipped(lacking)]
    runs = simulated_runs()
    return [_tasks(runs), _fitting(runs), _recomputation(), _all_reduces(), _bubbles()]


def simulated_runs() -> pd.DataFrame:
    """Every run of nanotron with `simulated_s`, `simulated_bytes` and `fits`."""
    rows = published.nanotron_rows()
    return pd.concat([_simulated(group) for _, group in rows.groupby(["model", "nodes"])])


def task_table(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per model and number of devices: how its runs that ended well are simulated."""
    ran = runs[runs["status"] == "ok"]
    return pd.DataFrame([{"model": name, "gpus": gpus, **_judged(group)} for (name, gpus), group in ran.groupby(["model", "gpus"])])


def recomputation() -> pd.DataFrame:
    """Iterations of Megatron-LM with `ratio`, simulated over measured."""
    runs = published.recomputation_rows()
    return runs.assign(ratio=[_iteration_s(row) / row["step_time_s"] for row in runs.to_dict("records")])


def all_reduce_errors() -> pd.DataFrame:
    """`members`, `bytes`, `error` of NCCL all-reduces within a host of A100."""
    measured = published.all_reduces("a100")
    hardware = load_hardware("A100-80GB")
    topology = Topology(hardware, hosts=1)
    simulated = [
        hardware.host.collective_s + all_reduce_s(topology.group(members, 1), bytes_)
        for members, bytes_ in zip(measured["members"], measured["bytes"], strict=True)
    ]
    return measured.assign(error=(pd.Series(simulated) / measured["seconds"] - 1).abs())


def bubble_rates() -> pd.DataFrame:
    """Published bubble rates beside those of oppa's orders at the same stage times."""
    times = pd.read_csv(published.folder() / STAGE_TIMES)
    rates = pd.read_csv(published.folder() / SCHEDULES).dropna(subset="bubble_rate")
    rates = rates[rates["schedule"].isin(KNOWN_SCHEDULES)].merge(times, on=["model", "pp", "microbatches"])
    return rates.assign(executed=[_bubble_rate(row) for row in rates.to_dict("records")])


def _simulated(task: pd.DataFrame) -> pd.DataFrame:
    first = task.iloc[0]
    dimensions: dict[str, Any] = {key: int(first[key]) for key in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len")}
    cluster = Cluster(hosts=int(first["nodes"]), devices_per_host=8, device="H100", memory_limit_bytes=85_028_896_768)
    imitated = Simulator(Model(**dimensions, tied=bool(first["tied"])), cluster, precision="bf16", framework="nanotron", balanced=True)
    configurations = [_configuration(row) for row in task.to_dict("records")]
    return task.assign(
        simulated_s=[imitated.step_time_s(each) for each in configurations],
        simulated_bytes=[imitated.memory_bytes(each) for each in configurations],
        fits=[imitated.fits(each) for each in configurations],
    )


def _configuration(row: Mapping[Hashable, Any]) -> Configuration:
    names = {"dp": "dp", "tp": "tp", "pp": "pp", "global_batch": "gbs", "micro_batch": "mbs", "zero_stage": "zero"}
    return Configuration.from_dict({name: int(row[column]) for name, column in names.items()})


def _iteration_s(row: Mapping[Hashable, Any]) -> float:
    names = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len")
    dimensions: dict[str, Any] = {name: int(row[name]) for name in names}
    model = Model(**dimensions, gated=False, biases=True, tied=True, norm="layer", learned_positions=dimensions["seq_len"])
    cluster = Cluster(hosts=int(row["gpus"]) // 8, devices_per_host=8, device="A100-80GB", memory_limit_bytes=84_987_740_160)
    chunks = int(row["model_chunks"])
    configuration = Configuration(
        dp=int(row["dp"]),
        tp=int(row["tp"]),
        pp=int(row["pp"]),
        global_batch=int(row["gbs"]),
        micro_batch=int(row["mbs"]),
        model_chunks=chunks,
        schedule="interleaved" if chunks > 1 else "1f1b",
        recompute=str(row["recompute"]),
    )
    return Simulator(model, cluster, precision="fp16", framework="megatron").step_time_s(configuration)


def _bubble_rate(row: Mapping[Hashable, Any]) -> float:
    ranks = int(row["pp"])
    chunks = LAYERS_AND_ENDS[row["model"]] // ranks if row["schedule"] == "1F1B-I" else 1
    found = order(KNOWN_SCHEDULES[row["schedule"]], ranks=ranks, micro_batches=int(row["microbatches"]), chunks=chunks)
    forward_s, input_s, weight_s, transfer_s = (row[f"T_{name}_ms"] / 1e3 for name in ("F", "B", "W", "comm"))
    stages = ranks * chunks
    times = Times(
        forward_s=[forward_s / chunks] * stages,
        backward_s=[(input_s if found.split else input_s + weight_s) / chunks] * stages,
        weight_s=[weight_s / chunks] * stages if found.split else [],
        transfer_s=[transfer_s] * (stages - 1),
    )
    return execute(found, times).bubble_rate


def _judged(task: pd.DataFrame) -> dict[str, float]:
    measured, simulated = task["step_time_s"], task["simulated_s"]
    return {
        "runs": len(task),
        "spearman": float(measured.corr(simulated, method="spearman")),
        "regret": float(measured.iloc[simulated.argmin()] / measured.min() - 1),
        "time": float((simulated / measured - 1).abs().median()),
        "memory": float((task["simulated_bytes"] / task["memory_bytes"] - 1).abs().median()),
    }


def _tasks(runs: pd.DataFrame) -> Section:
    tasks = task_table(runs)
    rows = [(f"{task['model']}, {task['gpus']} devices", task["runs"], *_cells(task)) for task in tasks.to_dict("records")]
    return Section(
        title="Which configuration is fast: nanotron on H100, simulated",
        text=f"The {published.FILES[published.NANOTRON]}, against `priors/clusters/H100.toml`. A task is a model on so many devices, its "
        "candidates are the runs that ended well. On many hosts some take several times as long as others like them, which is not "
        "simulated: a regret over 50% means that the one chosen did.",
        columns=("task", ">runs", ">Spearman", ">regret", ">error of step time", ">error of memory"),
        rows=[*rows, ("median of the tasks", "", *_cells(tasks.median(numeric_only=True).to_dict()))],
    )


def _cells(judgement: Mapping[Hashable, Any]) -> tuple[str, ...]:
    return (f"{judgement['spearman']:.3f}", *(f"{judgement[name]:.1%}" for name in ("regret", "time", "memory")))


def _fitting(runs: pd.DataFrame) -> Section:
    ran, legal = runs["status"] == "ok", runs["flag"].isna()
    kinds = {"ran": runs[ran], "failed": runs[~ran & legal]}
    return Section(
        title="Which configuration fits: nanotron on H100, simulated",
        text="`failed` lumps runs that were out of memory with all other failures, so not all of it can be foreseen.",
        columns=("run / simulated", ">fits", ">does not fit", ">share foreseen"),
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
    errors = all_reduce_errors()
    groups = [(str(members), group["error"]) for members, group in errors.groupby("members")]
    rows = [(name, len(each), f"{each.median():.1%}", f"{each.quantile(0.9):.1%}") for name, each in [*groups, ("all", errors["error"])]]
    return Section(
        title="All-reduces on A100, simulated",
        text="NCCL all-reduces of 1 MB to 1 GB within a host (vTrain's measurements), from which its links' figures are taken.",
        columns=(">devices", ">measurements", ">median error", ">90% below"),
        rows=rows,
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


def _skipped(lacking: list[str]) -> Section:
    return Section(
        title="The simulator against published measurements: SKIPPED",
        text=f"`{published.folder()}` lacks what it is compared with: put it there, or name the folder that has it in OPPA_DATA.",
        columns=("missing file", "what it holds"),
        rows=[(name, FILES[name]) for name in lacking],
    )
