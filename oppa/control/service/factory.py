"""Build the controller of each job from its hello, under one table and one policy."""

import hashlib
import json
from collections.abc import Callable

from oppa import __version__
from oppa.control.controller import EVERY, Controller
from oppa.control.decision import Policy
from oppa.control.reach import reachable
from oppa.control.throughput_index import ThroughputIndex
from oppa.protocol.messages import Hello
from oppa.table.table import Table


class ControllerFactory:
    """Builds controllers. All jobs share one table, but each has its own controller and policy.

    Args:
        table: Throughput table; None for policies that need none.
        policy_of: Factory of the policy.
        every: Steps between two decisions.
        policy: Name of the policy with its settings. Empty: the service keeps no snapshots, because it cannot tell policies apart.

    Raises:
        TableError: if the table is empty.
        InputError: if the policy cannot choose from the table, or a setting of it is out of range.
    """

    def __init__(
        self, table: Table | None, policy_of: Callable[[ThroughputIndex | None], Policy], *, every: int = EVERY, policy: str = ""
    ) -> None:
        self._throughputs = ThroughputIndex(table) if table else None
        self._policy_of, self._every = policy_of, every
        policy_of(self._throughputs)  # a wrong setting is refused now, and not at the first hello
        self.basis = _basis(table, every, policy) if policy else ""
        """Digest of all that decisions depend on besides messages; empty without the name of a policy."""

    def __call__(self, hello: Hello) -> Controller:
        """Return the controller of a job."""
        return Controller(
            self._throughputs and self._throughputs.scaled(hello.scaling),
            reachable(self._policy_of, hello.reach),
            total_samples=hello.total_samples,
            warmup_samples=hello.warmup_samples,
            reconfiguration_s=hello.reconfiguration_s,
            every=self._every,
        )


def _basis(table: Table | None, every: int, policy: str) -> str:
    digest = hashlib.sha256(json.dumps([__version__, every, policy]).encode())
    for row in table.rows if table else ():
        digest.update(json.dumps([row.configuration.to_dict(), row.steps_per_s, row.log_stddev]).encode())
    return digest.hexdigest()
