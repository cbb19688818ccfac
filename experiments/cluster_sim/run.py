"""Simulate elastic jobs on a shared cluster: FlexTrain's figure 11 on traces like Seren's, its settings, and the achievable saving.

A world fixes the seed, the share of elastic jobs, how they scale, and the settings. All of it is deterministic; worlds run in parallel.
"""

import concurrent.futures
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from experiments import published
from experiments.registry import ELASTIC
from oppa.bench.worker_pool import worker_pool
from oppa.cluster.comparison import FREE, NONE, PolicyRow, SharedCluster, compared
from oppa.cluster.elastic import Elasticity, elastic
from oppa.cluster.generator import SEREN, generate
from oppa.cluster.job import ScaleTable
from oppa.cluster.models import MODELS, PublishedModel, elasticity
from oppa.cluster.scaling import Settings

SHARE = 0.2
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Shares of the pretraining jobs that are elastic; 55% of the pretraining jobs have one of the three sizes."""
THRESHOLDS = (0.0, 0.3, 0.6, 0.8, 0.95)
WINDOWS_H = (1.0, 4.0, 8.0, 24.0)
PP, DP_PP, MEASURED = "pp", "dp+pp", "nanotron"
"""Scaling of a job: by stages alone, by replicas and stages, or as measured for an 8B model."""
POLICIES = ("greedy", "flextrain", "elasticflow")
WORKERS = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClusterWorld:
    """Holds the inputs of one simulation: a trace, its elastic jobs, the settings, and the policies to compare."""

    seed: int
    scaling: str = PP
    share: float = SHARE
    policies: tuple[str, ...] = (NONE, *POLICIES)
    threshold: float = Settings().threshold
    window_h: float = Settings().window_s / 3600
    days: float = 90.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTrace:
    """Holds a world and the result of each policy in it."""

    world: ClusterWorld
    rows: tuple[PolicyRow, ...]
    seconds: float
    """Seconds that the simulation took in one process."""

    def row(self, policy: str) -> PolicyRow:
        """Return the result of one policy."""
        return next(row for row in self.rows if row.policy == policy)


def run(
    worlds: Iterable[ClusterWorld], tables: Mapping[str, Mapping[int, Elasticity]], tell: Callable[[str], None]
) -> list[SimulatedTrace]:
    """Simulate all worlds, and return them in their order.

    Args:
        tables: Elasticity by scaling and by the GPUs that a job requests.
        tell: Receives the progress.
    """
    worlds = list(worlds)
    with worker_pool(WORKERS) as pool:
        futures = [pool.submit(simulated, world, tables[world.scaling]) for world in worlds]
        for number, _ in enumerate(concurrent.futures.as_completed(futures), start=1):
            tell(f"{number} of {len(worlds)} worlds")
        return [future.result() for future in futures]


def simulated(world: ClusterWorld, kinds: Mapping[int, Elasticity]) -> SimulatedTrace:
    """Simulate one world.

    Args:
        kinds: Elasticity by the GPUs that a job requests.
    """
    jobs = elastic(generate(SEREN, days=world.days, seed=world.seed), world.share, kinds, seed=world.seed)
    settings = Settings(threshold=world.threshold, window_s=world.window_h * 3600)
    begin_s = time.perf_counter()
    found = compared(jobs, SharedCluster(gpus=SEREN.gpus, each=SEREN.gpus_per_node, settings=settings), world.policies)
    return SimulatedTrace(world=world, rows=tuple(row for row, _ in found), seconds=time.perf_counter() - begin_s)


def scale_tables(tell: Callable[[str], None], names: Sequence[str] = ELASTIC) -> dict[str, dict[int, Elasticity]]:
    """Return the elasticity of these models, by scaling and by the GPUs that a job requests.

    Measured scaling is left out if the measurements are missing.
    """
    models = [model for model in MODELS if model.name in names]
    found = {}
    for name, replicas in ((PP, False), (DP_PP, True)):
        tell(f"scale tables: {name}")
        found[name] = elasticity(replicas=replicas, models=models)
    return found | ({} if published.missing({published.NANOTRON: ""}) else {MEASURED: measured_elasticity(models)})


def measured_elasticity(models: Sequence[PublishedModel] = MODELS) -> dict[int, Elasticity]:
    """Return the elasticity of an 8B model on 8 to 512 H100, with the fastest setting on each number of nodes (the Ultra-Scale Playbook).

    The result has an entry for each model's number of GPUs. The costs of a change are the model's own.
    """
    rows = published.nanotron_rows()
    large = rows[(rows["layers"] == rows["layers"].max()) & rows["tok_s"].notna()]
    rates = large.groupby("nodes")["tok_s"].max()
    found = {}
    for model in models:
        speedups = [(int(nodes) * 8, float(rate / rates[model.gpus // 8])) for nodes, rate in rates.items() if int(nodes) * 8 > model.gpus]
        found[model.gpus] = Elasticity(table=ScaleTable.of(model.gpus, speedups), save_s=model.save_s, start_s=model.start_s)
    return found


def headline(seeds: Sequence[int], days: float) -> list[ClusterWorld]:
    """Return worlds for every seed and both scalings, with every policy and with free changes, which bound the achievable saving."""
    return [
        ClusterWorld(seed=seed, scaling=scaling, policies=(NONE, *POLICIES, FREE), days=days) for seed in seeds for scaling in (PP, DP_PP)
    ]


def shares(seeds: Sequence[int], days: float) -> list[ClusterWorld]:
    """Return worlds with a growing share of elastic jobs (figure 11)."""
    return [
        ClusterWorld(seed=seed, scaling=scaling, share=share, days=days) for share in SHARES for scaling in (PP, DP_PP) for seed in seeds
    ]


def thresholds(seeds: Sequence[int], days: float) -> list[ClusterWorld]:
    """Return worlds with other thresholds, and with other windows."""
    ours = ClusterWorld(seed=0, policies=(NONE, "flextrain"), days=days)
    one = [dataclasses.replace(ours, seed=seed, threshold=threshold) for threshold in THRESHOLDS for seed in seeds]
    return one + [dataclasses.replace(ours, seed=seed, window_h=window_h) for window_h in WINDOWS_H for seed in seeds]


def measured(seeds: Sequence[int], days: float) -> list[ClusterWorld]:
    """Return worlds whose jobs scale as measured."""
    return [ClusterWorld(seed=seed, scaling=MEASURED, days=days) for seed in seeds]


def completion_ratio(ran: Sequence[SimulatedTrace], policy: str) -> float:
    """Return the completion time of elastic jobs over that without scaling, summed over all these worlds."""
    return _sum(ran, policy, "completion_s") / _sum(ran, NONE, "completion_s")


def queue_ratio(ran: Sequence[SimulatedTrace], policy: str) -> float:
    """Return the queueing time of all other jobs over that without scaling, summed over all these worlds."""
    return _sum(ran, policy, "queue_s") / _sum(ran, NONE, "queue_s")


def reached(ran: Sequence[SimulatedTrace], policy: str) -> float:
    """Return the time that elastic jobs save, as a share of what they would save if changes were free."""
    return (1 - completion_ratio(ran, policy)) / (1 - completion_ratio(ran, FREE))


def _sum(ran: Sequence[SimulatedTrace], policy: str, name: str) -> float:
    return float(sum(getattr(each.row(policy), name) for each in ran))


def scaling_of(ran: Sequence[SimulatedTrace], scaling: str) -> list[SimulatedTrace]:
    """Return the worlds with this scaling."""
    return [each for each in ran if each.world.scaling == scaling]


def jobs_per_s(ran: Sequence[SimulatedTrace]) -> float:
    """Return the jobs that one process simulates per second."""
    return sum(row.jobs for each in ran for row in each.rows) / sum(each.seconds for each in ran)


def to_json(ran: Sequence[SimulatedTrace]) -> dict[str, object]:
    """Return the result for `oppa bench cluster-sim --json`; each queue ratio is the worse of the two scalings."""
    ways = {name: scaling_of(ran, name) for name in (PP, DP_PP)}
    return {
        "elastic_jct_ratio_pp": completion_ratio(ways[PP], "flextrain"),
        "elastic_jct_ratio_dp_pp": completion_ratio(ways[DP_PP], "flextrain"),
        "others_queue_ratio": max(queue_ratio(way, "flextrain") for way in ways.values()),
        "greedy_queue_ratio": max(queue_ratio(way, "greedy") for way in ways.values()),
        "idle_share_reached": min(reached(way, "flextrain") for way in ways.values()),
        "utilisation": [each.row(NONE).utilisation for each in ways[PP]],
        "simulated_jobs_per_s": jobs_per_s(ran),
        "rows": [{"seed": each.world.seed, "scaling": each.world.scaling, **dataclasses.asdict(row)} for each in ran for row in each.rows],
    }
