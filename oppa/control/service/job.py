"""Represent a job in the service: its controller, the steps it has reported, and the data for the live page."""

from collections.abc import Callable, Mapping
from typing import Any

from oppa.control.controller import EVERY, Controller
from oppa.control.decision import Decision, DecisionKind, Policy
from oppa.control.throughput_index import ThroughputIndex
from oppa.protocol.messages import Changed, Decided, Hello, StepTaken
from oppa.table.table import Table

POINTS = 2000
"""Maximum number of points of a curve; when it has more, every second one is dropped."""
WEIGHED = ("limits", "current", "chosen", "best")
"""Fields of a decision that record the alternatives."""
KEPT = 200
"""Maximum number of decisions kept for the live page."""


def controllers(
    table: Table | None, policy_of: Callable[[ThroughputIndex | None], Policy], *, every: int = EVERY
) -> Callable[[Hello], Controller]:
    """Return a factory that builds the controller of a job from its hello.

    All jobs share one table, but each has its own controller and policy.

    Args:
        table: Throughput table; None for policies that need none.
        policy_of: Factory of the policy.
        every: Steps between two decisions.

    Raises:
        TableError: if the table is empty.
    """
    throughputs = ThroughputIndex(table) if table else None

    def control(hello: Hello) -> Controller:
        return Controller(
            throughputs and throughputs.scaled(hello.scaling),
            policy_of,
            total_samples=hello.total_samples,
            warmup_samples=hello.warmup_samples,
            reconfiguration_s=hello.reconfiguration_s,
            every=every,
        )

    return control


class ControlledJob:
    """One training run, from its first message on.

    Args:
        hello: The first message.
        control: Factory of the controller for a hello.
    """

    def __init__(self, hello: Hello, control: Callable[[Hello], Controller]) -> None:
        self.name, self.controller = hello.job, control(hello)
        self.number = 0
        """Largest message number accepted so far."""
        self.last: StepTaken | None = None
        self.history = History()
        self.decisions: list[dict[str, Any]] = []
        self.changes = 0
        self._unheard: Decided | None = None

    def take(self, message: StepTaken | Changed) -> Decided | None:
        """Process a message unless its number was accepted before; return a decision if one is due, else None."""
        if message.number <= self.number:
            return None
        self.number = message.number
        if isinstance(message, Changed):
            self._changed(message)
            return None
        self.last = message
        decision = self.controller.step(message)
        self.history.add(_point(message, self.controller))
        if decision is None:
            return None
        self._unheard = self._decided(message, decision)
        return self._unheard

    def unheard(self) -> Decided | None:
        """Return the newest decision that was neither sent to the job nor superseded by a change; else None."""
        return self._unheard

    def heard(self, decided: Decided) -> None:
        """Mark a decision as sent; until then it is sent again on the next connection."""
        if self._unheard is decided:
            self._unheard = None

    def _changed(self, message: Changed) -> None:
        self._unheard = None
        self.changes += not message.failure
        self.controller.changed(message)
        if self.decisions:
            self.decisions[-1]["outcome"] = {"seconds": message.seconds, "failure": message.failure}

    def _decided(self, message: StepTaken, decision: Decision) -> Decided:
        record = {"step": message.step, "elapsed_s": message.elapsed_s, "times": 1, "id": decision.configuration.id, **decision.to_dict()}
        if self.decisions and decision.command == DecisionKind.NO_OP and _alike(self.decisions[-1], record):
            record["times"] += self.decisions.pop()["times"]  # repeated No-Ops with the same limits share one record
        self.decisions = [*self.decisions, record][-KEPT:]
        return Decided(
            number=message.number,
            command=decision.command.value,
            before=message.configuration,
            configuration=decision.configuration,
            local_batches=list(decision.local_batches),
            before_step=decision.before_step,
            reason=decision.reason[:2000],
            **{name: record[name] for name in WEIGHED},
        )


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(one[name] == other[name] for name in ("command", "configuration", "limits"))


class History:
    """Points of a curve. Above the limit `most`, every second one is dropped; the last point always stays."""

    def __init__(self, most: int = POINTS) -> None:
        self._most, self._stride, self._count = most, 1, 0
        self._points: list[dict[str, Any]] = []
        self._last: dict[str, Any] | None = None

    def add(self, point: dict[str, Any]) -> None:
        """Append a point."""
        if self._count % self._stride == 0:
            self._points.append(point)
        self._count, self._last = self._count + 1, point
        if len(self._points) > self._most:
            self._points, self._stride = self._points[::2], self._stride * 2

    @property
    def points(self) -> list[dict[str, Any]]:
        """Return the points in order."""
        return self._points if self._last is None or self._points[-1] is self._last else [*self._points, self._last]


def _point(message: StepTaken, controller: Controller) -> dict[str, Any]:
    present = controller.present
    return {
        "step": message.step,
        "samples": message.samples,
        "elapsed_s": message.elapsed_s,
        "configuration": message.configuration.id,
        "global_batch": message.configuration.global_batch,
        "loss": message.loss,
        "noise_scale": message.reliable_noise_scale,
        "goodput": present and present.goodput,
        "samples_per_s": message.configuration.global_batch / message.step_time_s,
        "efficiency": present and present.efficiency,
    }
