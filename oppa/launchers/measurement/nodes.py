"""Find slow nodes among those of a measurement.

The rule is the generalised extreme Studentised deviate test (Rosner 1983; NIST handbook, section 1.3.5.17.3), one-sided, on the logarithm
of each node's rate. Slow nodes do not hide each other, because the slowest is removed before the spread of the others is computed. Fewer
than half of the nodes can be slow. A slow node's best repeat is also slower than the median of every other node.

Notation (n nodes, of which the i - 1 slowest are removed):
    x   log rates of the nodes left                     (n - i + 1,)
    R   (mean of x - smallest x) / standard deviation of x
"""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from oppa.launchers.measurement.figures import Figure, MeasuredNode

FALSE_ALARM = 0.05
"""Probability that the rule names a node if all nodes are alike, over all figures together."""
FEWEST = 3
"""Nodes below which no rule can identify the slow one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SlowNode:
    """Describes a node that is slower than the spread of the others explains."""

    name: str
    figure: Figure
    share: float
    """Rate of the node as a share of the other nodes' median rate."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"name": self.name, "what": self.figure.what, "detail": self.figure.detail, "share": self.share}


def slow_nodes(nodes: Sequence[MeasuredNode]) -> list[SlowNode]:
    """Return the slow nodes with each figure in which they are slow, slowest first; none for fewer than FEWEST nodes."""
    if len(nodes) < FEWEST:
        return []
    kinds = list(dict.fromkeys(figure.kind for node in nodes for figure in node.figures))
    found = [slow for kind in kinds for slow in _slow(nodes, kind, FALSE_ALARM / len(kinds))]
    return sorted(found, key=lambda each: each.share)


def names(slow: Iterable[SlowNode]) -> list[str]:
    """Return the names of slow nodes, each once."""
    return list(dict.fromkeys(each.name for each in slow))


def _slow(nodes: Sequence[MeasuredNode], kind: tuple[str, str], false_alarm: float) -> list[SlowNode]:
    by_node = {node.name: figure for node in nodes for figure in node.figures if figure.kind == kind}
    if len(by_node) < FEWEST:
        return []
    ranked = sorted(by_node, key=lambda name: by_node[name].median)
    suspects = ranked[: _outliers([math.log(by_node[name].median) for name in ranked], false_alarm)]
    others = [by_node[name].median for name in ranked[len(suspects) :]]
    return [
        SlowNode(name=name, figure=by_node[name], share=by_node[name].median / statistics.median(others))
        for name in suspects
        if max(by_node[name].samples) < min(others)
    ]


def _outliers(ascending: Sequence[float], false_alarm: float) -> int:
    """Return how many of the smallest values are outliers."""
    found, count = 0, len(ascending)
    for removed in range((count - 1) // 2):
        left = ascending[removed:]
        spread = statistics.stdev(left)
        if spread and (statistics.fmean(left) - left[0]) / spread > _critical(len(left), false_alarm):
            found = removed + 1
    return found


def _critical(left: int, false_alarm: float) -> float:
    """Return the largest R that is to be expected of `left` equal nodes."""
    from scipy.special import stdtrit

    quantile = float(stdtrit(left - 2, 1 - false_alarm / left))
    return (left - 1) * quantile / math.sqrt((left - 2 + quantile**2) * left)
