"""Train an own trainer under a policy until some steps after a line of its ledger."""

from oppa.control.training_session.callback import RunCallback
from oppa.training.run import ledger
from tests.own_trainer.own_runs import OwnRun

SPEEDS = {(8, "none"): 100.0, (16, "none"): 95.0, (32, "none"): 90.0}
"""Steps per second of a table in which larger batches pay, if gradients are noisy."""
FURTHER = 40
"""Steps after the last expected batch in which a policy would decide on another one."""


class Until(RunCallback):
    """Stops a run some steps after a line of its ledger has a value."""

    def __init__(self, own: OwnRun, key: str, value: object) -> None:
        self._own, self._key, self._value, self._left, self._tail = own, key, value, FURTHER, None

    def stop_requested(self) -> bool:
        if self._tail is None and self._own.run.exists():
            self._tail = ledger.Tail(self._own.run)
        for line in self._tail.new() if self._tail else ():
            self._left -= line.get(self._key) == self._value or (self._left < FURTHER and line["event"] == ledger.STEP)
        return self._left <= 0


def trained(folder, policy, *, noise, begin=8, until=("global_batch", 32), train=()):
    """Train under a policy until some steps after a line of the ledger; return the run and its batches in step order."""
    own = OwnRun(folder, "--noise", str(noise), samples=20_000, train=train)
    table = own.table(folder / "t", SPEEDS)
    result = own.train(f"global_batch={begin}", table=table, policy=policy, callback=Until(own, *until))
    assert own.samples() == list(range(ledger.require_whole(result.lines))), result.outcome.last.cause
    return own, list(dict.fromkeys(line["global_batch"] for line in own.events(ledger.STEP)))
