"""A small task, a designer that tries its candidates in order, and runs as a comparison logs them."""

from oppa.bench.runs import SearchRun
from oppa.problem.cluster import Cluster
from oppa.problem.model import Model
from oppa.problem.problem import Problem, facts_of
from oppa.problem.space_file import read_space
from oppa.problem.training import Limits, Training
from oppa.simulator.benchmark_task import BenchmarkTask
from oppa.simulator.replay import Record, Replay, ReplayNoise

SPACE = "\n".join(f"[parameters.{name}]\nvalues = {values}" for name, values in (("dp", [1, 2, 4]), ("tp", [1, 2, 4]), ("pp", [1])))
SPACE += "\n[parameters.micro_batch]\nvalues = [1, 2]\n"


def small_task(noise: float = 0.0) -> BenchmarkTask:
    """Six candidates: dp is fast, the larger micro-batch faster, and all of dp = 4 fails."""
    model = Model(layers=2, hidden=8, heads=4, kv_heads=4, ffn=16, vocab=32, seq_len=8)
    cluster, training = Cluster(devices_per_host=4, memory_limit_bytes=1 << 30), Training()
    space = read_space(SPACE, name="small", facts=facts_of(model, 8, cluster, training))
    problem = Problem(
        name="small",
        stated_model=model,
        global_batch=8,
        cluster=cluster,
        runner="none",
        training=training,
        space=space,
        limits=Limits(q_min=2, q_max=4),
    )
    candidates = problem.candidates()
    records = {
        c: Record(outcome="failed") if c.dp == 4 else Record(outcome="completed", steps_per_s=float(c.dp * c.micro_batch), memory_bytes=9)
        for c in candidates
    }
    simulator = Replay(records=records, noise=ReplayNoise(trial=noise, step=noise, setup_s=10))
    return BenchmarkTask(name="small", problem=problem, candidates=candidates, simulator=simulator)


class InOrder:
    """Tries the candidates as they come."""

    def suggest(self, taken):
        return next((i for i in range(6) if i not in taken), None)

    def predict(self, candidate):
        return None

    def update(self, observations):
        self.last = observations


def run_of(best: tuple[float, ...], seconds: tuple[float, ...], *, designer: str = "oppa", task: str = "a", seed: int = 0) -> SearchRun:
    nothing = (None,) * len(best)
    return SearchRun(
        task=task,
        designer=designer,
        seed=seed,
        best_at=best,
        seconds=seconds,
        steps=(30,) * len(best),
        outcomes="c" * len(best),
        measured=best,
        predicted=nothing,
        log_stddev=nothing,
        memory=nothing,
        predicted_memory=nothing,
        winner="dp1_tp1_pp1_z0_mbs1",
        thinking_s=0.0,
    )
