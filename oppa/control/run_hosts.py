"""Give a run the hosts of its launcher, and further ones while it trains."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from oppa.launchers.elastic_hosts import ElasticHosts
from oppa.launchers.hosts import HostPool, HostsLauncher, SharedHostPool
from oppa.launchers.provider import Backend
from oppa.launchers.resolve import LaunchRequest, open_backend
from oppa.training.run.run_folder import RunSpec
from oppa.trials.runner import Runner


def elastic_hosts(run: RunSpec, folder: Path, backend: Backend, runner: Runner, request: LaunchRequest) -> ElasticHosts | None:
    """Return the hosts of a run whose number may change while it trains; None if ranks of two layouts cannot share them.

    Args:
        folder: Folder of the run.
        backend: Hosts of the first request.
        request: How further hosts are requested.
    """
    problem, grace_s = run.problem, run.problem.limits.grace_s
    if not isinstance(backend.pool, SharedHostPool):
        return None

    @contextlib.contextmanager
    def open_more(hosts: int, on_tick: Callable[[], None]) -> Iterator[SharedHostPool]:
        cluster = dataclasses.replace(problem.cluster, hosts=hosts)
        with open_backend(request, cluster, folder, name=problem.name, grace_s=grace_s, on_tick=on_tick) as further:
            assert isinstance(further.pool, SharedHostPool)
            yield further.pool

    def make_launcher(pool: HostPool) -> HostsLauncher:
        return HostsLauncher(runner, pool, study=run.uuid, grace_s=grace_s)

    return ElasticHosts(backend.pool, open_more if backend.has_more else None, make_launcher)
