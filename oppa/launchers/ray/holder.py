"""Hold the hosts of a tuner as a placement group, until stdin closes. This program is called the holder.

It prints an event whenever the state changes:

    -> {"event": "cluster", "address": ..., "fitting": 4}  living nodes that have the resources of a host, in use or not
    -> {"event": "held", "hosts": [{"node": ..., "name": ..., "address": ...}, ...]}  in the order of the bundles
    -> {"event": "waiting", "reason": ...}  the hosts are not granted yet, or a node or the head was lost
    -> {"event": "error", "message": ..., "hint": ...}

The group belongs to this process: Ray removes it as soon as the process ends, in whatever way.
"""

import dataclasses
import json
import select
import sys
from typing import Any

from oppa.launchers.event_line import write_event
from oppa.launchers.ray.cluster import Bundle, connected, unreachable

POLL_S = 0.5
"""Seconds between two checks of the placement group."""
SOON_S = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Describes what a holder holds. With `hosts = 0` it only counts the fitting nodes."""

    address: str
    name: str
    hosts: int
    bundle: Bundle


def main() -> None:
    """Hold what the command line describes."""
    values = json.loads(sys.argv[1])
    hold = Hold(**{**values, "bundle": Bundle(**values["bundle"])})
    with connected(hold.address) as address:
        import ray

        write_event("cluster", address=address, fitting=sum(map(hold.bundle.fits, ray.nodes())))
        if hold.hosts:
            _hold(hold, address)


def _hold(hold: Hold, address: str) -> None:
    from ray.util.placement_group import placement_group, placement_group_table

    group = placement_group([hold.bundle.resources] * hold.hosts, strategy="STRICT_SPREAD", name=hold.name)
    group.wait(SOON_S)  # idle nodes are granted in this time, and there is no reason to report
    reported: dict[str, Any] = {}
    while not select.select([0], [], [], POLL_S if reported else 0)[0]:
        silent = unreachable(address)  # Ray itself would wait for the head, and end this process after a minute
        event = (
            {"event": "waiting", "reason": f"the head does not answer: {silent}"} if silent else _state(hold, placement_group_table(group))
        )
        if event != reported:
            write_event(**event)
            reported = event


def _state(hold: Hold, table: dict[str, Any]) -> dict[str, Any]:
    """Return the event that describes a placement group."""
    import ray

    if table["state"] == "REMOVED":
        sys.exit("the cluster no longer lists these hosts, as after a restart of its head")
    nodes = {node["NodeID"]: node for node in ray.nodes()}
    where = [nodes.get(table["bundles_to_node_id"].get(number, "")) for number in range(hold.hosts)]
    if table["state"] == "CREATED" and all(node and node["Alive"] for node in where):
        hosts = [{"node": node["NodeID"], "name": node["NodeName"], "address": node["NodeManagerAddress"]} for node in where if node]
        return {"event": "held", "hosts": hosts}
    lost = [node["NodeName"] for node in where if node and not node["Alive"]]
    if lost or table["state"] == "RESCHEDULING":
        return {"event": "waiting", "reason": f"node {', '.join(lost) or 'of this job'} was lost"}
    fitting = sum(map(hold.bundle.fits, nodes.values()))
    if fitting < hold.hosts:
        return {"event": "waiting", "reason": f"the cluster has {fitting} of {hold.hosts} nodes with {hold.bundle}"}
    return {"event": "waiting", "reason": f"{hold.hosts} of {fitting} nodes with {hold.bundle} have to be idle"}
