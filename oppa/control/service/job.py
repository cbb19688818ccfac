"""Represent a job in the service: its controller, the steps it has reported, and the data for the live page."""

from collections.abc import Callable, Mapping
from typing import Any

from oppa.control.controller import Controller
from oppa.control.decision import Decision
from oppa.control.service.history import History, point_of
from oppa.protocol.messages import ROLL_BACK, Changed, Decided, Hello, StepTaken, from_job, from_service

WEIGHED = ("limits", "current", "chosen", "best")
"""Fields of a decision that record the alternatives."""
KEPT = 200
"""Maximum number of decisions kept for the live page."""


class ControlledJob:
    """Controls one training run, from its first message on.

    Args:
        hello: The first message.
        control: Factory of the controller for a hello.
        run: UUID of the run; empty if unknown.
        begun: Number of the last message of earlier runs of the name.
    """

    def __init__(self, hello: Hello, control: Callable[[Hello], Controller], *, run: str = "", begun: int = 0) -> None:
        self.name, self.controller = hello.job, control(hello)
        self._hello, self._control = hello, control
        self.run, self.begun = run, begun
        self.number = begun
        """Largest message number accepted so far."""
        self.unsaved = 0
        """Number of messages accepted since the last snapshot."""
        self.last: StepTaken | None = None
        self.history = History()
        self.decisions: list[dict[str, Any]] = []
        self.changes = 0
        self._newest: Decided | None = None
        """The newest decision, unless a change has superseded it; a roll-back stays until it was sent, or the loss is calm."""
        self._heard = False
        """True if the newest decision was sent to the job."""

    def begin(self, hello: Hello, run: str = "") -> None:
        """Continue under the hello of another connection: a later process of a run may have another length, bounds or learning rate."""
        self.run = self.run or run
        if hello == self._hello:
            return
        earlier, self.controller, self._hello = self.controller, self._control(hello), hello
        self.controller.succeed(earlier)

    def take(self, message: StepTaken | Changed) -> Decided | None:
        """Process a message unless its number was accepted before; return a decision if one is due, else None."""
        if message.number <= self.number:
            return None
        self.number, self.unsaved = message.number, self.unsaved + 1
        if isinstance(message, Changed):
            self._changed(message)
            return None
        self.last = message
        decision = self.controller.step(message)
        self.history.add(point_of(message, self.controller))
        if decision is None:
            return None
        decided = self._decided(message, decision)
        if not self._owes_roll_back or decided.command == ROLL_BACK:
            self._newest, self._heard = decided, False
        return decided

    def unheard(self) -> Decided | None:
        """Return the newest decision that was neither sent to the job nor superseded by a change; else None."""
        return None if self._heard else self._newest

    def heard(self, decided: Decided) -> None:
        """Mark a decision as sent; until then it is sent again on the next connection."""
        self._heard = self._heard or self._newest is decided

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the job as a JSON-serialisable dict.

        It does not record that a decision was sent, so that a restarted service sends the newest one again.
        """
        return {
            "number": self.number,
            "last": self.last and self.last.to_json(),
            "history": self.history.snapshot(),
            "decisions": self.decisions,
            "changes": self.changes,
            "newest": self._newest and self._newest.to_json(),
            "controller": self.controller.snapshot(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `snapshot` returned; the job has accepted no message yet."""
        self.number, self.decisions, self.changes = state["number"], state["decisions"], state["changes"]
        last = state["last"] and from_job(state["last"])
        newest = state["newest"] and from_service(state["newest"])
        assert last is None or isinstance(last, StepTaken)
        assert newest is None or isinstance(newest, Decided)
        self.last, self._newest = last, newest
        self.history.restore(state["history"])
        self.controller.restore(state["controller"])

    @property
    def _owes_roll_back(self) -> bool:
        """Return True if a roll-back was decided but not sent yet, and its spike persists: nothing takes its place."""
        return self._newest is not None and self._newest.command == ROLL_BACK and not self._heard and self.controller.is_in_spike

    def _changed(self, message: Changed) -> None:
        if not self._owes_roll_back:
            self._newest = None
        self.changes += not message.failure
        self.controller.changed(message)
        if self.decisions:
            self.decisions[-1]["outcome"] = {"seconds": message.seconds, "failure": message.failure}

    def _decided(self, message: StepTaken, decision: Decision) -> Decided:
        record = {"step": message.step, "elapsed_s": message.elapsed_s, "times": 1, "id": decision.configuration.id, **decision.to_dict()}
        if self.decisions and "outcome" not in self.decisions[-1] and _alike(self.decisions[-1], record):
            record["times"] += self.decisions.pop()["times"]  # what is decided again before it has an outcome shares one record
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
