"""Draw the noise of measurements: a factor per trial, a factor per step, occasional stragglers, and slow first steps.

Streams are named, so that adding one never shifts another. The noise of a trial depends on its configuration and the seed alone.
"""

import numpy as np
from numpy.typing import NDArray

from oppa.problem.configuration import Configuration
from oppa.random_streams import stream
from oppa.simulator.hardware import NoiseModel

FIRST_STEP_FACTOR, SECOND_STEP_FACTOR = 1.5, 1.05
"""Slow-down of the first two steps. Assumed.

The first step chooses algorithms, grows the allocator's pools and connects channels. The second finds a few of these left to do.
"""

MOST_DELAY = 20.0
"""Largest delay of a straggler, in step times; time-outs or users end longer ones."""


def noisy_steps(step_time_s: float, noise: NoiseModel, configuration: Configuration, *, steps: int, seed: int) -> NDArray[np.float64]:
    """Return the seconds of each step of a trial, the first (warm-up) included, shape (steps,)."""
    name = repr(configuration)
    luck = noise.trial * stream(seed, f"trial {name}").standard_normal()
    jitter = noise.step * stream(seed, f"steps {name}").standard_normal(steps)
    times = step_time_s * np.exp(luck + jitter) * (1 + _delays(noise, stream(seed, f"stragglers {name}"), steps))
    times[:1] *= FIRST_STEP_FACTOR
    times[1:2] *= SECOND_STEP_FACTOR
    return times


def _delays(noise: NoiseModel, random: np.random.Generator, steps: int) -> NDArray[np.float64]:
    """Return the delay of each step by stragglers, as a share of the step time, shape (steps,).

    A straggler delays by at least a fifth, and by a Pareto distribution sometimes by several times that.
    """
    late = random.random(steps) < noise.straggler_probability
    return np.where(late, np.minimum(0.2 * (1 + random.pareto(noise.straggler_tail, steps)), MOST_DELAY), 0.0)
