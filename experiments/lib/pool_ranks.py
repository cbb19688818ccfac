"""Run the ranks of a `RankPool`; started as a program.

    python -P -m experiments.lib.pool_ranks                 a fork server: one folder per line on stdin, answers on stdout
    python -P -m experiments.lib.pool_ranks FOLDER RANK     a rank that starts cold

Each rank runs the program of `FOLDER/request.json` and writes its answer to `FOLDER/RANK.json`. Times are monotonic: one clock for all
processes.
"""

import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from experiments.lib.rank_pool import BEGIN, PoolRequest
from experiments.timings.interleaved import in_turn
from experiments.timings.stopwatch import Stopwatch
from oppa.pipeline.from_configuration import schedule_of
from oppa.problem.configuration import Configuration
from oppa.problem.training import RunOptions
from oppa.training.checkpoint.saving import resume, save
from oppa.training.checkpoint.storage import sha256_of
from oppa.training.data.batches import Batch
from oppa.training.data.sources import source_of
from oppa.training.model.tensor_slices import inside
from oppa.training.parallel.family import Transformer
from oppa.training.parallel.mesh import Mesh, open_mesh, regrouped
from oppa.training.profiler.memory import PeakMemory, exact_pages
from oppa.training.replica import Replica
from oppa.training.reshard.exchange import find
from oppa.training.reshard.shards import layout_of
from oppa.training.reshard.staging import stage, trained
from oppa.training.reshard.transfers import boxes_by_key, flows
from oppa.training.run.step_profiling import StepProfiling
from oppa.training.run.training_run import open_run
from oppa.trials.trial_folder import TrialSpec

WARM_UP = 3
"""Untimed pairs of steps, and steps before a change of layout, which needs the optimizer's moments."""

Marks = dict[str, float]
"""End of each phase in monotonic seconds, by name."""


def alternate(request: PoolRequest, folder: Path, rank: int) -> list[tuple[float, float]]:
    """Return the seconds of a run's steps with and without gradient statistics, in pairs."""
    spec = request.spec(0)
    with open_run(spec, RunOptions(), rank=rank, world=request.ranks, rendezvous=f"file://{folder}/rendezvous") as run:
        run.step()
        watching, watched_steps = True, 1

        def timed(watched: bool) -> float:
            nonlocal watching, watched_steps
            if watched != watching:
                run.statistics_every, watching = int(watched), watched
                run.step()  # not timed: FSDP2 creates its hooks in the first step after a switch, and a real run switches once
                watched_steps += watched
            dist.barrier()
            watch.start()
            run.step()
            dist.barrier()  # a step ends when all ranks have ended it
            watched_steps += watched
            return watch.stop()

        watch = Stopwatch(run.mesh.device)
        in_turn(lambda: timed(True), lambda: timed(False), WARM_UP)
        pairs = in_turn(lambda: timed(True), lambda: timed(False), request.pairs)
        micro_batches = spec.configuration.num_microbatches * spec.configuration.dp
        assert run.noise_scale.samples == (micro_batches - 1) * watched_steps, "these steps were watched, and no others"
        return pairs


def rebatch(request: PoolRequest, folder: Path, rank: int) -> list[tuple[float, float]]:
    """Return the seconds of a run's steps with a change of batch sizes before them, change included, and without one, in pairs."""
    spec = request.spec(0)
    small, large = (dataclasses.replace(spec.configuration, global_batch=size * spec.configuration.global_batch) for size in (1, 2))
    with open_run(spec, RunOptions(), rank=rank, world=request.ranks, rendezvous=f"file://{folder}/rendezvous") as run:
        watch = Stopwatch(run.mesh.device)

        def timed(change: bool) -> float:
            run.change(small if change else large)
            run.step()
            dist.barrier()
            watch.start()
            if change:
                run.change(large)
            run.step()
            dist.barrier()
            return watch.stop()

        in_turn(lambda: timed(True), lambda: timed(False), WARM_UP)
        return in_turn(lambda: timed(True), lambda: timed(False), request.pairs)


def change(request: PoolRequest, folder: Path, rank: int) -> dict[str, Any]:
    """Train, save a checkpoint, and change the layout in process; return the end of each phase, and the state before and after."""
    source, target = request.spec(0), request.spec(1)
    with joined(source, folder, rank) as mesh:
        replica = Replica(source, mesh)
        for _ in range(WARM_UP):
            replica.step(share_of(source, mesh))
        before = digests(replica, source, mesh, request.layouts)
        saving = begun()
        save(Path(request.checkpoint), replica, source, mesh, {})
        saving["save"] = time.monotonic()
        changing = begun()
        staged = stage(replica, source, mesh)
        changing["stage"] = time.monotonic()
        del replica
        changing["release"] = time.monotonic()
        mesh = regrouped(mesh, target.configuration)
        changing["regroup"] = time.monotonic()
        replica = Replica(target, mesh, weights=False)
        changing["rebuild"] = time.monotonic()
        staged.load(replica, target, mesh)
        changing["load"] = time.monotonic()
        after = digests(replica, target, mesh, request.layouts)
        return {"saving": saving, "changing": changing, "before": before, "after": after, "left_s": time.monotonic()}


def restart(request: PoolRequest, folder: Path, rank: int) -> dict[str, Any]:
    """Resume from a checkpoint in the second layout; return the end of each phase, and the state."""
    spec, marks = request.spec(1), Marks()
    with joined(spec, folder, rank) as mesh:
        marks["start"] = time.monotonic()
        replica = Replica(spec, mesh, weights=False)
        marks["build"] = time.monotonic()
        resume(Path(request.checkpoint), replica, spec, mesh)
        marks["load"] = time.monotonic()
        return {"restarting": marks, "after": digests(replica, spec, mesh, request.layouts)}


def share(request: PoolRequest, folder: Path, rank: int) -> float:
    """Return the error of the gradient of uneven local batches, relative to the norm of this process's own gradient over all samples."""
    spec = request.spec(0)
    with joined(spec, folder, rank) as mesh:
        return _astray(spec, mesh, request.local_batches, source_of(spec).batch(0, range(spec.configuration.global_batch)))


def pipeline(request: PoolRequest, folder: Path, rank: int) -> dict[str, Any]:
    """Return the peak memory of the first layout's first step, the seconds of timed steps by layout, and a profile of all steps.

    One replica runs all layouts in turn. Only rank 0 returns the profile.
    """
    first = request.spec(0)
    with joined(first, folder, rank) as mesh:
        peak, steps_s = PeakMemory(mesh.device), []
        with exact_pages(mesh.device), peak.watch():
            replica = Replica(first, mesh)
            profiling = StepProfiling(replica, first, mesh, schedule_of(first.configuration))
            profiling.watch(peak)
            replica.step(share_of(first, mesh))
        profiling.took(0.0)
        for number in range(len(request.layouts)):
            spec = request.spec(number)
            if number:
                replica.rebatch(spec.configuration)
                other = PeakMemory(mesh.device)
                with exact_pages(mesh.device), other.watch():
                    profiling.watch(other)
                    replica.step(share_of(spec, mesh))
                profiling.took(0.0)
            replica.step(share_of(spec, mesh))
            profiling.skip()
            steps_s.append([_timed(replica, share_of(spec, mesh), profiling) for _ in range(request.pairs)])
        profile = profiling.profile()
        return {"steps_s": steps_s, "peak_bytes": peak.bytes(), "profile": profile.to_dict() if rank == 0 else None}


def stretch(request: PoolRequest, folder: Path, rank: int) -> dict[str, Any]:
    """Train some steps, from a checkpoint if there is one, and save; return the losses and the end of each phase."""
    spec, marks = request.spec(0), Marks()
    with open_run(spec, RunOptions(profile_steps=0), rank=rank, world=request.ranks, rendezvous=f"file://{folder}/rendezvous") as run:
        marks["start"] = time.monotonic()
        if request.checkpoint:
            run.resume(Path(request.checkpoint), spec.configuration)
        marks["load"] = time.monotonic()
        losses = [run.step().loss for _ in range(request.pairs)]
        marks["train"] = time.monotonic()
        run.save(Path(request.saved))
        marks["save"] = time.monotonic()
    return {"losses": losses, "marks": marks}


def _timed(replica: Replica, batch: Batch, profiling: StepProfiling) -> float:
    """Return the seconds of a step, which ends when all ranks have ended it."""
    dist.barrier()
    begin_s = time.monotonic()
    replica.step(batch)
    dist.barrier()
    step_s = time.monotonic() - begin_s
    profiling.took(step_s)
    return step_s


def _astray(spec: TrialSpec, mesh: Mesh, local_batches: Sequence[int], batch: Batch) -> float:
    replica, start = Replica(spec, mesh, local_batches=local_batches), sum(local_batches[: mesh.dp.index])
    stop = start + local_batches[mesh.dp.index]
    replica.accumulate(Batch(batch.inputs[start:stop], batch.targets[start:stop]))
    (stage,) = replica.stages
    found = [parameter.grad.clone() for parameter in stage.parameters() if parameter.grad is not None]
    loss = Transformer(spec, mesh).loss(stage(batch.inputs), batch.targets)
    right = torch.autograd.grad(loss, list(stage.parameters()))
    wrong = sum(float((one - other).square().sum()) for one, other in zip(found, right, strict=True))
    return float((wrong / sum(float(each.square().sum()) for each in right)) ** 0.5)


PROGRAMS = {each.__name__: each for each in (alternate, rebatch, change, restart, share, pipeline, stretch)}


def joined(spec: TrialSpec, folder: Path, rank: int) -> AbstractContextManager[Mesh]:
    """Open the process groups of one request."""
    layout, rendezvous = spec.configuration, f"file://{folder}/rendezvous"
    return open_mesh(layout, spec.cluster, rank=rank, world=layout.devices, rendezvous=rendezvous)


def begun() -> Marks:
    """Wait for all ranks, and return the start of what they begin together."""
    dist.barrier()
    return {BEGIN: time.monotonic()}


def share_of(spec: TrialSpec, mesh: Mesh) -> Batch:
    """Return the samples of this rank's replica, the same in every step."""
    share = spec.configuration.global_batch // mesh.dp.size
    return source_of(spec).batch(0, range(mesh.dp.index * share, (mesh.dp.index + 1) * share))


def digests(replica: Replica, spec: TrialSpec, mesh: Mesh, layouts: tuple[Configuration, ...]) -> dict[str, str]:
    """Return the SHA-256 of each tensor slice of the training state on this rank.

    Slices are cut at the shard boundaries of both layouts, so that digests of the two can be compared.
    """
    staged = stage(replica, spec, mesh)
    held, wanted = (boxes_by_key(trained(layout_of(spec.model, layout, spec.training.moments), staged.steps)) for layout in layouts)
    found = {"steps": str(staged.steps)}
    for key, boxes in staged.state.items():
        for flow in flows(held[key], wanted[key]):
            if any(inside(flow.box, box) for box, _ in boxes):
                found[f"{key.kind}/{key.name}{flow.box}"] = sha256_of(find(boxes, flow.box))
    return found


def run(folder: Path, rank: int) -> int:
    """Run the request's program as this rank, write the answer, and return the exit code."""
    torch.set_num_threads(1)
    request = PoolRequest.read(folder)
    answer = PROGRAMS[request.program](request, folder, rank)
    (folder / f"{rank}.json").write_text(json.dumps(answer))
    return 0


def forked(folder: Path, rank: int) -> int:
    """Start a rank as a fork, which has imported everything; return its process id."""
    if child := os.fork():
        return child
    code = 1
    try:
        os.dup2(2, 1)
        if groups := PoolRequest.read(folder).groups:
            Path(groups[rank], "cgroup.procs").write_text(str(os.getpid()))
        code = run(folder, rank)
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
        os._exit(code)


def executed(folder: Path, rank: int) -> int:
    """Start a rank as a new interpreter; return its process id."""
    command = [sys.executable, "-P", "-m", "experiments.lib.pool_ranks", str(folder), str(rank)]
    return os.posix_spawn(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)])


def ended(ranks: Sequence[int]) -> list[int]:
    """Wait for all ranks and return their exit codes; the first failure ends the others, which may wait for that rank."""
    codes: dict[int, int] = {}
    while len(codes) < len(ranks):
        pid, status = os.waitpid(-1, 0)
        codes[pid] = os.waitstatus_to_exitcode(status)
        if codes[pid] != 0:
            for other in set(ranks) - codes.keys():
                os.kill(other, signal.SIGKILL)
    return [codes[rank] for rank in ranks]


def main() -> None:
    """Run requests from stdin until it ends."""
    for line in sys.stdin:
        folder = Path(line.strip())
        request = PoolRequest.read(folder)
        start = executed if request.cold else forked
        started_s = time.monotonic()
        ranks = [start(folder, rank) for rank in range(request.ranks)]
        codes = ended(ranks)
        sys.stdout.write(json.dumps({"started_s": started_s, "ended_s": time.monotonic(), "codes": codes}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        code = run(Path(sys.argv[1]), int(sys.argv[2]))
        sys.stderr.flush()
        os._exit(code)  # skips torch's teardown, which takes a second
    main()
