"""Change the layout of a run on all ranks, or undo the change on all (COPUS, appendix B; the phases are those of `staging`).

Until loading begins, the staged state can fill the old layout as well as the new one. The ranks agree on whether all have built their part
through the store of the rendezvous, not through process groups. A rank that fails destroys its groups, so that no other rank waits for it
there. A failure or a killed rank after that ends the run on all ranks; its supervisor then resumes from the last checkpoint.
"""

import contextlib
import dataclasses
import gc
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from oppa.errors import OppaError
from oppa.problem.configuration import Configuration
from oppa.training.parallel.mesh import Mesh, regrouped
from oppa.training.replica import Replica
from oppa.training.reshard.staging import Staged, stage
from oppa.trials.trial_folder import TrialSpec

Phase = Literal["stage", "release", "regroup", "rebuild", "load", "undo"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChange:
    """Describes the outcome of a change of configuration."""

    before: Configuration
    after: Configuration
    """The new configuration, or the old one if the change was undone."""
    seconds: Mapping[str, float]
    """Seconds of each phase on this rank."""
    received_bytes: int = 0
    """Bytes that this rank received."""
    failure: str = ""
    """Reason why the change was undone; empty if it was not."""


class _NotBuiltError(OppaError):
    """One rank could not build its part of a layout; all ranks raise it."""


def reconfigured(
    replicas: list[Replica], spec: TrialSpec, mesh: Mesh, configuration: Configuration, on_phase: Callable[[Phase], None]
) -> tuple[Replica, Mesh, LayoutChange]:
    """Move the training state into another layout, or back into the present one if a rank cannot build its part of the other.

    Args:
        replicas: A list with this rank's replica. It must be the only reference, because the replica is removed from it and released.
        spec: Model and present configuration.
        mesh: Present process groups.
        configuration: Configuration with the new layout.
        on_phase: Called as each phase begins.

    Returns:
        The replica and the mesh of the resulting layout, and the outcome.
    """
    seconds = dict[str, float]()

    @contextlib.contextmanager
    def phase(name: Phase) -> Iterator[None]:
        on_phase(name)
        begin_s = time.monotonic()
        yield
        seconds[name] = time.monotonic() - begin_s

    target, failure = dataclasses.replace(spec, configuration=configuration), ""
    with phase("stage"):
        staged = stage(replicas[0], spec, mesh)
    with phase("release"):
        replicas.clear()
        gc.collect()
    with phase("regroup"):
        mesh = regrouped(mesh, configuration)
    try:
        with phase("rebuild"):
            replica = _built(target, mesh)
    except _NotBuiltError as error:
        failure = error.message
    if not failure:
        with phase("load"):
            received_bytes = staged.load(replica, target, mesh)
        return replica, mesh, LayoutChange(before=spec.configuration, after=configuration, seconds=seconds, received_bytes=received_bytes)
    with phase("undo"):
        replica, mesh = _back(staged, spec, mesh)
    return replica, mesh, LayoutChange(before=spec.configuration, after=spec.configuration, seconds=seconds, failure=failure)


def _back(staged: Staged, spec: TrialSpec, mesh: Mesh) -> tuple[Replica, Mesh]:
    """Rebuild the old layout, and load the staged state."""
    gc.collect()
    mesh = regrouped(mesh, spec.configuration)
    replica = _built(spec, mesh)
    staged.load(replica, spec, mesh)
    return replica, mesh


def _built(spec: TrialSpec, mesh: Mesh) -> Replica:
    """Build this rank's part of a layout, and wait until all ranks have; raises _NotBuiltError on all ranks if one has failed."""
    replica, failure = None, ""
    try:
        replica = Replica(spec, mesh, weights=False)
    except Exception as error:  # noqa: BLE001 - after any error, the old layout is restored
        failure = f"{type(error).__name__}: {error}"
    if failure:
        gc.collect()
        dist.destroy_process_group()
    if first := _first_failure(mesh, failure):
        rank, why = first
        raise _NotBuiltError(f"{rank} cannot build its part of `{spec.configuration.id}`: {why}")
    assert replica is not None
    return replica


def _first_failure(mesh: Mesh, failure: str) -> tuple[str, str] | None:
    """Return the rank that failed first, and why; None if all ranks built their part. Each rank uses the store a fixed number of times."""
    store = PrefixStore(f"built {mesh.layout}", mesh.store)
    if failure and store.add("failed", 1) == 1:
        store.set("failure", json.dumps((f"rank {mesh.rank}", failure)))
    if store.add("done", 1) == mesh.world:
        store.set("verdict", store.get("failure").decode() if store.add("failed", 0) else "null")
    verdict: tuple[str, str] | None = json.loads(store.get("verdict"))
    return verdict
