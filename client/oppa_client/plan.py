"""Describe what a training program does in one optimizer step: its samples, its micro-batches and its learning rate.

Samples are numbered from the start of the run. A step takes the next `global_batch` numbers, whatever the batch was before, so every sample
is taken once. Replicas take consecutive parts of a step. Parts differ by at most one sample, and the last replicas take fewer.
"""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Rate:
    """Holds the rule by which the learning rate follows the batch; it is that of oppa's own trainer.

    The factor is (batch / reference_batch) ** exponent. It follows a smaller batch at once, and a larger one over `damping` batches.
    """

    reference_batch: float = 1.0
    exponent: float = 0.0
    damping: int = 0
    batch: float = 1.0
    """Batch that the learning rate followed when the batch last changed."""
    since: int = 0
    """Samples taken up to that change."""

    def followed(self, global_batch: int, seen: int) -> float:
        """Return the batch that the learning rate follows after `seen` samples."""
        share = min(1.0, (seen - self.since) / (self.damping * global_batch)) if self.damping else 1.0
        return min(float(global_batch), self.batch + (global_batch - self.batch) * share)

    def factor(self, global_batch: int, seen: int) -> float:
        """Return the factor of the learning rate at the end of a step after `seen` samples."""
        return float((self.followed(global_batch, seen) / self.reference_batch) ** self.exponent)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Holds the batch of the step that begins now."""

    number: int
    """Number of the plan; a change of the batch is a new plan."""
    from_step: int
    """First step of the plan."""
    global_batch: int
    """Samples of this step, over all ranks; the last step of a training may have fewer than the steps before."""
    micro_batch: int
    """Largest number of samples of a micro-batch."""
    accumulation: int
    """Micro-batches of each replica in a step of the full batch."""
    learning_rate_factor: float
    """Factor of the learning rate that was chosen for the job's own batch."""
    step: int
    """Number of this step, counted from the start of the run."""
    progress: int
    """Samples taken before this step; warm-up, decay, evaluation and saving go by it."""
    statistics_every: int | None = None
    """Interval of the steps whose gradients are measured, which are multiples of it; 0: none. None leaves it to what measures them."""

    @property
    def samples(self) -> range:
        """Return the numbers of the samples of this step, over all ranks."""
        return range(self.progress, self.progress + self.global_batch)

    def share(self, replica: int, replicas: int) -> range:
        """Return the numbers of the samples that one of the data-parallel replicas takes in this step."""
        return parts(self.samples, replicas)[replica]

    def micro_batches(self, replica: int, replicas: int) -> list[range]:
        """Return the samples of each micro-batch of a replica; all replicas have as many, and some may be empty.

        Sum the loss over the samples of a micro-batch, and divide it by `global_batch`. All samples of the step then count alike.
        Multiply it by `replicas` before `backward` if gradients are averaged over replicas, as DDP and FSDP do.
        """
        largest = -(-self.global_batch // replicas)
        return parts(self.share(replica, replicas), max(1, -(-largest // self.micro_batch)))

    def in_two(self, replicas: int) -> Plan:
        """Return the plan of a step in two micro-batches, if it would be a single one over all replicas; otherwise this plan.

        The noise of gradients shows in how those of micro-batches differ, so a single micro-batch has none.
        """
        if replicas > 1 or not 1 < self.global_batch <= self.micro_batch:
            return self
        return dataclasses.replace(self, micro_batch=-(-self.global_batch // 2), accumulation=2)

    def fills(self, replicas: int) -> bool:
        """Return True if no micro-batch of a replica is empty; the gradients of an empty one cannot be measured."""
        return all(self.micro_batches(replicas - 1, replicas))


def parts(numbers: range, count: int) -> list[range]:
    """Return consecutive parts of a range, of which the last ones are shorter by one if it does not divide."""
    size, longer = divmod(len(numbers), count)
    ends = [numbers.start + index * size + min(index, longer) for index in range(count + 1)]
    return [range(begin, end) for begin, end in zip(ends, ends[1:])]


@dataclasses.dataclass(frozen=True)
class Terms:
    """Holds a plan as oppa and the program exchange it: what stays the same in all its steps."""

    number: int
    from_step: int
    global_batch: int
    micro_batch: int
    accumulation: int
    rate: Rate

    @classmethod
    def fixed(cls, global_batch: int, micro_batch: int, accumulation: int) -> Terms:
        """Return the terms of a training whose batch never changes, so that its learning rate is the one that was chosen."""
        return cls(1, 0, global_batch, micro_batch, accumulation, Rate(reference_batch=global_batch, batch=global_batch))

    @classmethod
    def of(cls, values: dict[str, Any]) -> Terms:
        """Return the terms that `to_dict` wrote; unknown keys, as later versions may add, are left out."""
        known = {field.name: values[field.name] for field in dataclasses.fields(cls) if field.name != "rate"}
        rates = {field.name: values["rate"][field.name] for field in dataclasses.fields(Rate)}
        return cls(**known, rate=Rate(**rates))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as they are written to JSON."""
        return dataclasses.asdict(self)

    def at(self, step: int, progress: int, total: int | None, statistics_every: int | None = None) -> Plan:
        """Return the plan of one step.

        Args:
            step: Number of the step.
            progress: Samples taken before it.
            total: Samples of the whole training, to which the last step is cut; None if it has no end.
            statistics_every: Interval of the steps whose gradients are measured.
        """
        size = self.global_batch if total is None else max(0, min(self.global_batch, total - progress))
        return Plan(
            number=self.number,
            from_step=self.from_step,
            global_batch=size,
            micro_batch=self.micro_batch,
            accumulation=self.accumulation,
            learning_rate_factor=self.rate.factor(self.global_batch, progress + self.global_batch),
            step=step,
            progress=progress,
            statistics_every=statistics_every,
        )

    def changed(self, asked: dict[str, Any], *, from_step: int, seen: int) -> Terms:
        """Return the terms of another batch, from a step on before which `seen` samples are taken."""
        batch, rate = int(asked["global_batch"]), self.rate
        if batch != self.global_batch:
            rate = dataclasses.replace(rate, batch=rate.followed(self.global_batch, seen), since=seen)
        values = {name: int(asked[name]) for name in ("number", "global_batch", "micro_batch", "accumulation")}
        return Terms(from_step=from_step, rate=rate, **values)
