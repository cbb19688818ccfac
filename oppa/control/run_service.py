"""Run the control service of a run, or use the one that the user named, and make it reachable from the ranks."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from oppa.control.policy_choice import MakePolicy
from oppa.control.registry import LEARNED
from oppa.control.service import discovery
from oppa.control.service.address import ServiceAddress
from oppa.control.service.factory import ControllerFactory
from oppa.control.service.server import Service
from oppa.control.service.thread import serve_in_thread
from oppa.launchers.network import LOOPBACK
from oppa.launchers.provider import Backend
from oppa.table.table import Table
from oppa.training.run import ledger
from oppa.training.run.run_folder import RunSpec


@dataclasses.dataclass
class ServiceReport:
    """Collects the final report of the control service that a run starts."""

    worth: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Goodput gain and regret of the decisions; empty before the end, and without a policy."""
    reached: bool = True
    """False if the ranks took steps and never reached the service."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunService:
    """Runs the control service of one run, or advertises the one that the user named.

    Args:
        run: The run, in `folder`.
        backend: The hosts of the ranks.
        named: A running service that the user named; None if the run has its own.
        table: Table of its own service.
        make: Function that makes the policy; None without one.
        controlled: Called with the address of the live page.
    """

    run: RunSpec
    folder: Path
    backend: Backend
    named: ServiceAddress | None
    table: Table | None
    make: MakePolicy | None
    controlled: Callable[[str], None]

    @contextlib.contextmanager
    def running(self, report: ServiceReport) -> Iterator[None]:
        """Run the service inside the context if a policy is chosen, or use the service that the user named."""
        (self.folder / discovery.FILE).unlink(missing_ok=True)  # left by a supervisor that was killed
        if self.named:
            with self._advertised(self.named):
                yield
            return
        if not self.make:
            yield
            return
        started, run, policy = time.time(), self.run, self.run.policy
        name = "" if policy.partition(",")[0] in LEARNED else policy  # weights have no name that distinguishes them
        titles = {run.uuid: run.problem.name}
        service = Service(self.folder / "control", ControllerFactory(self.table, self.make, policy=name), titles=titles)
        try:
            with serve_in_thread(service) as port, self._advertised(ServiceAddress(run.uuid, port, service.tokens.of_job(run.uuid))):
                self.controlled(service.live_page(port))
                yield
            if (job := service.jobs.get(run.uuid)) is not None:
                report.worth = job.controller.to_dict()
            newest = ledger.latest_steps(self.folder, 1)
            report.reached = bool(service.taken) or not newest or newest[0]["time"] < started
        finally:
            service.close()

    @contextlib.contextmanager
    def _advertised(self, service: ServiceAddress) -> Iterator[None]:
        """Advertise a service on this machine to the ranks, and make it reachable from their hosts, inside the context."""
        grace_s, log = self.run.problem.limits.grace_s, self.folder / "tunnel.log"
        with self.backend.reached(service.port, grace_s=grace_s, log=log) as port:
            own, through = f"{LOOPBACK}:{service.port}", f"{LOOPBACK}:{port}"
            with discovery.advertise(self.folder, address=own, through=through, job=service.job, token=service.token, run=self.run.uuid):
                yield
