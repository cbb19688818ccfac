"""Run training on one rank: take steps, change batch sizes or layout between two steps, save the run and resume it.

    with open_run(spec, run_options, rank=rank, world=world, rendezvous=where) as run:
        run.step()
        run.change(rebatched(spec.configuration, spec.model.layers, global_batch=64))    # batch sizes alone: nothing moves
        run.change(Configuration(dp=1, tp=2, pp=2, global_batch=64, micro_batch=4))      # the layout: state moves between ranks
        run.save(folder)

All ranks make the same calls after the same step. Decisions that only rank 0 can make are directives, which it sends with the numbers that
end a step anyway.
"""

import contextlib
import dataclasses
import gc
import math
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from oppa.errors import InputError
from oppa.pipeline.from_configuration import searches
from oppa.pipeline.graph import Schedule
from oppa.problem.configuration import Configuration
from oppa.problem.training import RunOptions
from oppa.protocol.worker import WorkerState
from oppa.training.checkpoint import saving
from oppa.training.checkpoint.manifest import Manifest
from oppa.training.data.batches import Batch
from oppa.training.data.sources import source_of
from oppa.training.model.user_module import require_restorable
from oppa.training.parallel.mesh import Mesh, open_mesh, regrouped
from oppa.training.parallel.supported_layouts import require_buildable, require_measurable, require_runnable
from oppa.training.profiler.memory import keep_pages
from oppa.training.replica import Replica, same_layout
from oppa.training.reshard.reconfiguration import LayoutChange, Phase, reconfigured
from oppa.training.run.learning_rate import Followed, learning_rate
from oppa.training.run.notes import RunNotes, read_together
from oppa.training.run.step import Directive, TrainingStep
from oppa.training.run.step_consensus import RankReport, agree
from oppa.training.run.warmup_profiling import WarmupProfiling
from oppa.training.statistics.noise_scale import NoiseScale, Smoothing
from oppa.training.statistics.validation import Validated, share_of
from oppa.training.statistics.worker_metrics import WorkerMetrics
from oppa.trials.trial_folder import TrialSpec


@contextlib.contextmanager
def open_run(
    spec: TrialSpec, run_options: RunOptions, *, rank: int, world: int, rendezvous: str, on_phase: Callable[[Phase], None] = lambda _: None
) -> Iterator["TrainingRun"]:
    """Open a run at its initial weights, and close it at the end of the block.

    Args:
        spec: Model and first configuration; `steps` and the memory limit are for trials, and unused.
        run_options: Length of the run, learning rate schedule and measurements.
        rank: Number of this rank.
        world: Number of ranks.
        rendezvous: URL at which all ranks meet, as torch's `init_method`.
        on_phase: Called on each rank as each phase of a change of layout begins.

    Raises:
        InputError: if the model or the configuration cannot be built, or the data cannot be loaded.
    """
    timeout_s = spec.training.collective_timeout_s
    with open_mesh(spec.configuration, spec.cluster, rank=rank, world=world, rendezvous=rendezvous, timeout_s=timeout_s) as mesh:
        keep_pages(mesh.device)
        run = TrainingRun(spec, run_options, mesh, on_phase)
        try:
            yield run
        finally:
            run.close()


class TrainingRun:
    """Runs one rank's part of a run."""

    def __init__(self, spec: TrialSpec, run_options: RunOptions, mesh: Mesh, on_phase: Callable[[Phase], None]) -> None:
        self.spec, self.run_options, self.mesh = spec, run_options, mesh
        self.steps = self.samples = 0
        """Optimizer steps taken, and samples seen in them."""
        warmup_tokens = run_options.warmup_samples * spec.model.seq_len or Smoothing().warmup_tokens
        self.noise_scale = NoiseScale(smoothing=Smoothing(warmup_tokens=warmup_tokens))
        """Noise scale of the gradients so far."""
        self.statistics_every = 1 if run_options.statistics_every is None else run_options.statistics_every
        """Interval of steps whose gradients are measured; 0 for none."""
        self.local_batches: tuple[int, ...] = ()
        """Samples of each worker; empty if all take the same number."""
        self._reference_batch = run_options.reference_batch or spec.configuration.global_batch
        self._followed = Followed(batch=spec.configuration.global_batch, since=0)
        self._on_phase = on_phase
        self._source = source_of(spec, run_options.validation)
        self._earlier_s, self._since_s = 0.0, time.monotonic()
        self._worker: WorkerMetrics | None = None
        self._start: WarmupProfiling | None = None
        self._replica: Replica | None = None
        """Created on first use, with initial weights or to be filled from a checkpoint."""

    @property
    def configuration(self) -> Configuration:
        """Return the present configuration."""
        return self.spec.configuration

    @property
    def total(self) -> int | None:
        """Return the samples of the whole run; None if it has no end."""
        return self.run_options.samples or self._source.size

    @property
    def elapsed_s(self) -> float:
        """Return the seconds of training so far, with changes and checkpoints, but without the time between attempts."""
        return self._earlier_s + time.monotonic() - self._since_s

    @property
    def done(self) -> bool:
        """Return whether all samples were seen; the last batch is complete, so that a run may see a few more."""
        return self.total is not None and self.samples >= self.total

    def step(self, directive: Directive | None = None) -> TrainingStep:
        """Take one optimizer step over the next samples; all ranks call it. The result has rank 0's directive on every rank."""
        replica = self._made()
        begin_s, batch = time.monotonic(), range(self.samples, self.samples + self.configuration.global_batch)
        rate, share = self._learning_rate(batch), self._share(batch)
        replica.set_learning_rate(rate)
        ended = self._begin_workers_step(len(share))
        shown = self._source.samples(share)
        self._measure()
        self._seed_dropout()
        with self._start.step() if self._start else contextlib.nullcontext():
            loss = replica.accumulate(shown.to(self.mesh.device))
            own = (share.start, share.stop, _checksum(shown))
            agreed = agree(self.mesh, RankReport(loss=loss, share=own, measured=replica.measured(), directive=directive, worker=ended))
            self.noise_scale = self.statistics.take_in(agreed.measured)
            updated = replica.update(math.isfinite(agreed.loss) and self.statistics.finite)
        step_time_s = time.monotonic() - begin_s
        profile = self._start.took(step_time_s) if self._start else None
        if profile is not None:
            self._start = None
        if self._worker is not None:
            self._worker.end(step_time_s)
        step = TrainingStep(
            number=self.steps,
            samples=batch,
            shares=agreed.shares,
            configuration=self.configuration,
            local_batches=self.local_batches,
            loss=agreed.loss,
            learning_rate=rate,
            step_time_s=step_time_s,
            noise_scale=self.noise_scale,
            norms=self.statistics.norms,
            workers=agreed.workers,
            updated=updated,
            profile=profile,
            directive=agreed.directive,
        )
        self.steps, self.samples = self.steps + 1, batch.stop
        return step

    def _learning_rate(self, batch: range) -> float:
        """Return the learning rate of a step over these samples."""
        options, base, reference = self.run_options, self.spec.training.learning_rate, self._reference_batch
        return learning_rate(options, base=base, reference_batch=reference, batch=batch, total=self.total, followed=self._followed)

    def _begin_workers_step(self, samples: int) -> WorkerState | None:
        """Begin a step in this worker's window of metrics; if it ends a window, return that one's metrics."""
        if self._worker is None:
            return None
        ended = self._worker.state(samples) if self._worker.steps == self.run_options.workers_every else None
        self._worker.begin()
        return ended

    def validate(self) -> Validated:
        """Evaluate the present weights on the held-out samples; all ranks call it.

        Raises:
            InputError: if no samples are held out.
        """
        if not self._source.held_out:
            raise InputError("no samples are held out", hint="set `validation` in [train]")
        total = self._made().evaluate(*share_of(self._source, self.configuration, self.mesh.dp.index))
        dist.all_reduce(total)
        return Validated.of(total)

    def change(self, configuration: Configuration, local_batches: Sequence[int] = ()) -> LayoutChange:
        """Change batch sizes or the layout; a layout that cannot be built leaves the present one.

        Args:
            configuration: New configuration. If local batches are given, its global batch is their sum, and each worker takes at most
                `micro_batch` samples at once.
            local_batches: Samples of each worker; by default, all take the same number. Gradients stay the mean over samples.

        Raises:
            InputError: if the configuration cannot run; nothing has changed then.
        """
        if configuration.devices != self.mesh.world:
            hint = "keep the number of devices"
            raise InputError(f"`{configuration.id}` is for {configuration.devices} ranks, not {self.mesh.world}", hint=hint)
        require_buildable(self.spec.model, configuration)
        require_runnable(self.spec.model, configuration, local_batches)
        require_measurable(configuration, self.statistics_every)
        followed = self._followed_by(self.configuration.global_batch, configuration.global_batch)
        if same_layout(configuration, self.configuration):
            change = self._rebatched(configuration, local_batches)
        elif local_batches:
            raise InputError("local batches cannot change together with the layout", hint="change the layout first")
        else:
            change = self._reconfigured(configuration)
        if not change.failure:
            self._followed = followed
            if self._worker is not None:  # a window has a single batch size
                self._worker.restart()
        return change

    def set_schedule(self, schedule: Schedule) -> None:
        """Use another schedule from the next step on; a pending profile uses it, too, before the run's first step, and ends later on."""
        replica = self._made()
        profiles = self._start is not None
        self._stop_profiling()
        replica.set_schedule(schedule)
        if profiles and not self.steps:
            self._profile(replica, schedule)

    def broadcast(self, text: str) -> str:
        """Broadcast rank 0's text to all ranks, and return it; all ranks call it."""
        texts = [text]
        dist.broadcast_object_list(texts, src=0)
        return texts[0]

    def save(self, folder: Path) -> None:
        """Save everything that `resume` needs, in a folder that all ranks can access; all ranks call it.

        Raises:
            CheckpointError: if the folder exists, or a rank cannot write.
        """
        saving.save(folder, self._made(), self.spec, self.mesh, self._notes().to_dict())

    def resume(self, folder: Path, configuration: Configuration, *, keep_layout: bool = False) -> None:
        """Resume from a checkpoint of this run, in any configuration with the same number of devices; all ranks call it.

        Args:
            folder: The checkpoint.
            configuration: Configuration to resume in.
            keep_layout: Resume in the checkpoint's configuration instead, if it has the same number of devices.

        Raises:
            CheckpointError: if the checkpoint is incomplete, altered, of another model or of other data, or ranks find different ones.
                The run cannot step then, but it can resume from another checkpoint.
        """
        notes, manifest = self._read(folder)
        if keep_layout and notes.configuration.devices == configuration.devices:
            configuration = notes.configuration
        self.local_batches = notes.local_batches if notes.configuration == configuration else ()
        self._restore(folder, manifest, notes.noise_scale, configuration)
        self.steps, self.samples = notes.step, notes.samples
        self._reference_batch = self.run_options.reference_batch or notes.reference_batch
        self._earlier_s, self._since_s = notes.elapsed_s, time.monotonic()
        self._followed = notes.followed
        self._followed = self._followed_by(notes.configuration.global_batch, configuration.global_batch)

    def roll_back(self, folder: Path, configuration: Configuration, local_batches: Sequence[int] = ()) -> None:
        """Restore only weights, moments and noise scale from a checkpoint; all ranks call it.

        The counts of steps and samples continue, so that no sample comes again. The training since the checkpoint is lost. A loss may have
        risen because of the samples in between: PaLM also goes back and skips them (COPUS, appendix E).

        Raises:
            CheckpointError: as `resume`.
        """
        followed = self._followed_by(self.configuration.global_batch, configuration.global_batch)
        (notes, manifest), self.local_batches = self._read(folder), tuple(local_batches)
        self._restore(folder, manifest, notes.noise_scale, configuration)
        self._followed = followed

    def close(self) -> None:
        """Release the model, before the process groups are destroyed."""
        self._stop_profiling()
        if self._replica is not None:
            self._replica.close()
        self._replica = self._worker = None
        gc.collect()  # a model in a reference cycle would outlive its process groups

    def _read(self, folder: Path) -> tuple[RunNotes, Manifest]:
        return read_together(folder, self.spec.model, self._data(), self.mesh)

    def _restore(self, folder: Path, manifest: Manifest, noise_scale: NoiseScale, configuration: Configuration) -> None:
        """Build a replica with the weights, moments and noise scale of a checkpoint."""
        if self._replica is not None or configuration != self.configuration:
            self.close()
            self.spec, self.mesh = dataclasses.replace(self.spec, configuration=configuration), regrouped(self.mesh, configuration)
        replica = self._replica = Replica(self.spec, self.mesh, weights=False, local_batches=self.local_batches)
        saving.resume(folder, replica, self.spec, self.mesh, manifest)
        self.noise_scale = noise_scale
        self._watch(replica)
        if searches(configuration):
            self._profile(replica)

    def _made(self) -> Replica:
        """Return this rank's part of the model; the first call creates it."""
        if self._replica is None:
            self._replica = Replica(self.spec, self.mesh, local_batches=self.local_batches)
            self._watch(self._replica)
            self._profile(self._replica)
        return self._replica

    def _profile(self, replica: Replica, schedule: Schedule | None = None) -> None:
        """Profile the next steps, unless workers have different local batches, which a profile does not model."""
        if self.run_options.profile_steps and not self.local_batches:
            self._start = WarmupProfiling(replica, self.spec, self.mesh, self.run_options.profile_steps, schedule)

    def _stop_profiling(self) -> None:
        if self._start is not None:
            self._start.stop()
            self._start = None

    def _watch(self, replica: Replica) -> None:
        """Measure the gradients of a replica, and the state of its worker if each rank holds the whole model."""
        require_measurable(self.configuration, self.statistics_every)
        require_restorable(replica.stages)
        alone = self.mesh.dp.size == 1  # there are no other workers to compare with
        self.statistics = replica.watch(self.noise_scale, "micro-batches" if alone else self.run_options.statistics)
        if self._worker is not None:
            self._worker.close()
        self._worker = None
        if self.run_options.workers_every and self.mesh.dp.size == self.mesh.world:
            self._worker = WorkerMetrics(replica.stages[0], self.mesh.device)
            replica.listen(self._worker.answered)

    def _measure(self) -> None:
        """Resume or pause the measurement of gradients for the step that begins."""
        if self.statistics_every and self.steps % self.statistics_every == 0:
            self.statistics.resume()
        else:
            self.statistics.pause()

    def _seed_dropout(self) -> None:
        """Seed what a user's module draws in the step that begins, such as dropout: each rank draws other numbers in each step."""
        torch.manual_seed(zlib.crc32(f"{self.spec.training.seed}/step {self.steps}/rank {self.mesh.rank}".encode()))

    def _followed_by(self, before: int, after: int) -> Followed:
        """Return the batch that the learning rate follows after a change of the global batch from `before` to `after`."""
        if before == after:
            return self._followed
        return Followed(batch=self._followed.reached(before, self.samples, self.run_options.damping), since=self.samples)

    def _share(self, batch: range) -> range:
        """Return this worker's samples of a batch."""
        sizes = self.local_batches or [len(batch) // self.mesh.dp.size] * self.mesh.dp.size
        start = sum(sizes[: self.mesh.dp.index])
        return batch[start : start + sizes[self.mesh.dp.index]]

    def _rebatched(self, configuration: Configuration, local_batches: Sequence[int]) -> LayoutChange:
        before, begin_s, replica = self.configuration, time.monotonic(), self._made()
        profiles = self._start is not None or searches(configuration)
        self._stop_profiling()
        replica.rebatch(configuration, local_batches)
        self.spec, self.local_batches = dataclasses.replace(self.spec, configuration=configuration), tuple(local_batches)
        if profiles:
            self._profile(replica)
        return LayoutChange(before=before, after=configuration, seconds={"rebatch": time.monotonic() - begin_s})

    def _reconfigured(self, configuration: Configuration) -> LayoutChange:
        if self.local_batches:
            raise InputError("the layout cannot change while workers have local batches of their own", hint="divide the batch evenly first")
        self._stop_profiling()
        alone, self._replica = [self._made()], None  # `alone` must be the only reference to it
        alone[0].close()
        replica, self.mesh, change = reconfigured(alone, self.spec, self.mesh, configuration, self._on_phase)
        self.spec, self._replica = dataclasses.replace(self.spec, configuration=change.after), replica
        self._watch(replica)
        if searches(self.configuration):
            self._profile(replica)
        return change

    def _notes(self) -> RunNotes:
        return RunNotes(
            step=self.steps,
            samples=self.samples,
            elapsed_s=self.elapsed_s,
            configuration=self.configuration,
            local_batches=self.local_batches,
            reference_batch=self._reference_batch,
            followed=self._followed,
            noise_scale=self.noise_scale,
            data=self._data(),
        )

    def _data(self) -> dict[str, Any]:
        """Return values that identify the data that the sample numbers refer to."""
        return {"seed": self.spec.training.seed, "size": self._source.size, "first": _checksum(self._source.samples(range(1)))}


def _checksum(shown: Batch) -> int:
    return zlib.crc32(shown.inputs.contiguous().view(-1).view(torch.uint8).numpy().data)
