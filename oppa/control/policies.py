"""Policies by name; another one is another entry."""

from collections.abc import Callable, Mapping

from oppa.control.critical_batch import CriticalBatchPolicy
from oppa.control.decision import Policy
from oppa.control.goodput_policy import GoodputPolicy
from oppa.control.offers import Offers
from oppa.control.static import StaticPolicy
from oppa.errors import InputError, nearest

POLICIES: Mapping[str, Callable[[Offers], Policy]] = {
    "goodput": GoodputPolicy,
    "goodput-paper": GoodputPolicy.as_written,
    "critical-batch": CriticalBatchPolicy,
    "static": lambda _: StaticPolicy(),
}


def policy_of(name: str) -> Callable[[Offers], Policy]:
    """What makes a policy from what there is to choose from; raises InputError for an unknown name."""
    if name not in POLICIES:
        raise InputError(f"`--policy {name}` is unknown", hint=nearest(name, POLICIES))
    return POLICIES[name]
