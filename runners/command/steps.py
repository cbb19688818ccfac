"""Optimizer steps, counted and timed from the lines that a program prints.

Notation:
    unit      what the program counts: an optimizer step, or one of `per_step` batches
    facts     the named groups of a line that matched: `step` or `done`, `s` or `ms`, `loss`, `memory_gib`
    at_s      when the last unit was seen
    rest      units seen that make no whole step yet, and the seconds that they took
"""

import dataclasses
import math

GIB = 1 << 30
SECONDS = {"s": 1.0, "ms": 1e-3}
LATE = 1
"""A rank may print a step again after another rank has printed the next one: synchronous ranks are no further apart."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One optimizer step."""

    seconds: float
    loss: float | None = None
    memory_bytes: int | None = None


class StepCounter:
    """Turns lines into steps; a counter may start at 0, at 1 or anywhere, and start again in each epoch."""

    def __init__(self, *, per_step=1, now_s):
        self.per_step = per_step
        self.first = self.last = None
        self.at_s = now_s
        self.rest, self.rest_s = 0, 0.0

    def read(self, lines, now_s):
        """Return the steps that lines complete.

        Args:
            lines: The facts of each line; those that came at once share the time since the lines before them.
        """
        counts = [self.units(facts) for facts in lines]
        if not any(counts):
            self.at_s = now_s if any(facts.get("done") == "0" for facts in lines) else self.at_s
            return []
        share_s = (now_s - self.at_s) / sum(counts)
        self.at_s = now_s
        return [step for facts, count in zip(lines, counts, strict=True) if count for step in self.steps(facts, count, share_s)]

    def units(self, facts):
        """Return how many units a line adds to those before it; 0 for a line that repeats one."""
        if facts.get("done") is not None:
            return self.done(int(facts["done"]))
        if facts.get("step") is None:
            return 1
        number, last = int(facts["step"]), self.last
        if last is None:
            self.first = self.last = number
            return 1  # a run that was resumed begins at any number
        if number <= self.first and last - number > LATE:
            self.begin_epoch(number)
            return 1
        self.last = max(last, number)
        return self.last - last

    def done(self, number):
        """The same for a line that prints how many are done."""
        if self.last is None:
            self.last = number
            return number if number <= 1 else 0
        if number == 0 or self.last - number > LATE:
            self.begin_epoch(0)
        last, self.last = self.last, max(number, self.last)
        return self.last - last

    def begin_epoch(self, number):
        """Count on from `number`; batches at the end of the last epoch that are too few for a step are no step of this configuration."""
        self.last = number
        self.rest, self.rest_s = 0, 0.0

    def steps(self, facts, count, share_s):
        """Return the whole steps that `count` more units complete."""
        unit_s = next((float(facts[name]) * scale for name, scale in SECONDS.items() if facts.get(name)), share_s)
        self.rest, self.rest_s = self.rest + count, self.rest_s + count * unit_s
        whole, rest = divmod(self.rest, self.per_step)
        step_s = self.rest_s * self.per_step / self.rest
        if whole:
            self.rest, self.rest_s = rest, self.rest_s * rest / self.rest
        return [Step(seconds=step_s, loss=finite(facts.get("loss")), memory_bytes=in_bytes(facts.get("memory_gib")))] * whole


def finite(text):
    """Return a number; None where there is none, or none that is finite."""
    return float(text) if text and math.isfinite(float(text)) else None


def in_bytes(gib):
    """Return bytes; None where there is no number."""
    return int(float(gib) * GIB) if gib else None
