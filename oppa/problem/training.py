"""How the model is trained, and how much a study may spend."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a training run needs to know beyond model, configuration and cluster."""

    precision: str = "fp32"
    """`fp32` or `bf16`."""
    learning_rate: float = 3e-4
    seed: int = 0
    corpus: str = ""
    """A folder of text to train on; empty: the sources of Python's standard library."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a study and each of its trials may spend."""

    trials: int | None = None
    """Search trials of the whole study, verification repeats not counted; None: no limit."""
    wall_time_s: float | None = None
    """Wall-clock time of the search, over all sittings; the trial that runs when it is spent is finished. None: no limit."""
    trial_time_s: float = 120.0
    """A trial that takes longer is ended: `timed_out`."""
    q_min: int = 5
    """Steps of every trial before early termination is considered (OPPA eq. 5)."""
    q_max: int = 30
    """Steps of a complete trial, the first (warm-up) included (OPPA Table 2)."""
    repeats: int = 3
    """Runs of the winner and of the default configuration at the end, interleaved."""
    grace_s: float = 5.0
    """Between asking a process to end and killing it."""
