"""Register policies by name; add an entry for a new policy.

Settings may follow a name, as in `norm-test,eta=0.3,maximum=512`. They are the numeric keyword arguments of the policy's constructor.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial

from oppa.control.decision import Policy
from oppa.control.policies.critical_batch import CriticalBatchPolicy
from oppa.control.policies.goodput import GoodputPolicy
from oppa.control.policies.norm_test import NormTestPolicy
from oppa.control.policies.proportional import ProportionalPolicy
from oppa.control.policies.stagewise import StagewisePolicy
from oppa.control.policies.static import StaticPolicy
from oppa.control.rl.policy import ExploringPolicy, LearnedPolicy
from oppa.control.rl.weights import Weights
from oppa.control.throughput_index import ThroughputIndex
from oppa.errors import InputError, nearest, require_known

POLICIES: Mapping[str, Callable[..., Policy]] = {
    "goodput": GoodputPolicy,
    "goodput-paper": GoodputPolicy.as_written,
    "critical-batch": CriticalBatchPolicy,
    "norm-test": NormTestPolicy,
    "norm-test-paper": NormTestPolicy.as_written,
    "stagewise": StagewisePolicy,
    "proportional": ProportionalPolicy,
    "static": lambda _: StaticPolicy(),
}
LEARNED: Mapping[str, Callable[..., Policy]] = {"rl": LearnedPolicy, "explore": ExploringPolicy}
"""Policies that need weights; `explore` uses only their actions and window."""
WITHOUT_TABLE = ("proportional", *LEARNED)
WITHOUT_NOISE = ("stagewise", "static", *WITHOUT_TABLE)
"""Policies that need no table, and those that need no measurement of the gradients."""
RATIOS = {"norm-test": "variance_ratio", "norm-test-paper": "worker_variance_ratio"}
"""Statistic of a step that the policies of the norm test need, by the name of the policy."""


def policy_of(text: str, weights: Weights | None = None) -> Callable[[ThroughputIndex | None], Policy]:
    """Return a factory that builds the policy from candidates; policies that need no table accept None (`needs_table`).

    Args:
        text: Name of the policy, with settings if any.
        weights: Weights of a learned policy.

    Raises:
        InputError: for an unknown name or setting, missing weights, or weights for a policy that takes none.
    """
    name, *settings = text.split(",")
    known_names = {**POLICIES, **LEARNED}
    require_known(name, known_names, f"`--policy {name}` is unknown")
    if (name in LEARNED) != (weights is not None):
        hint = (
            "make them with `oppa train-policy JOB`, and give them: `oppa train JOB --weights FILE`"
            if name in LEARNED
            else "leave out --weights"
        )
        raise InputError(f"`--policy {name}` {'needs' if name in LEARNED else 'does not use'} weights", hint=hint)
    known = _settings(known_names[name])
    make = partial(known_names[name], **dict(_setting(name, each, known) for each in settings))
    return partial(make, weights=weights) if weights else make


def needs_table(text: str) -> bool:
    """Return True if a policy chooses from a table."""
    return text.partition(",")[0] not in WITHOUT_TABLE


def needs_noise(text: str) -> bool:
    """Return True if a policy decides nothing without the noise of the gradients."""
    return text.partition(",")[0] not in ("", *WITHOUT_NOISE)


def needed_ratio(text: str) -> str:
    """Return the statistic of a step without which a policy of the norm test decides nothing; empty for other policies."""
    return RATIOS.get(text.partition(",")[0], "")


def _settings(make: Callable[..., Policy]) -> dict[str, type]:
    """Return the type, int or float, of each numeric setting of a policy."""
    parameters = inspect.signature(make).parameters.values()
    numbers = (each for each in parameters if each.kind is each.KEYWORD_ONLY and type(each.default) in (int, float))
    return {each.name: type(each.default) for each in numbers}


def _setting(policy: str, text: str, known: Mapping[str, type]) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if name not in known:
        hint = nearest(name, known) if known else "remove it"
        raise InputError(f"`--policy {policy}` has no setting `{name}`", hint=hint)
    try:
        number: float = known[name](value)
        if math.isnan(number):
            raise ValueError
    except ValueError:
        hint = "give a whole number" if known[name] is int else "give a number"
        raise InputError(f"`--policy {policy}`: `{text}` is not valid", hint=f"{hint}, as in `{name}=2`") from None
    return name, number
