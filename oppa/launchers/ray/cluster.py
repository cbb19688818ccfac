"""Connect a program of this package to a Ray cluster, and describe its nodes."""

import dataclasses
import json
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from oppa import catalog
from oppa.launchers.event_line import write_event
from oppa.units import with_noun

NAMESPACE = "oppa"
CONNECT_S = 10.0
METADATA, SPACE = b"CLUSTER_METADATA", b"cluster"
"""Key of the cluster's versions in the store of its head, and the key's namespace."""
HINT = "run oppa on a node of the cluster, for example by `ray job submit`, or name it: `--set launcher.options.address=HOST:PORT`"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Describes the resources that a trial holds on each host."""

    cpus: int
    gpus: int = 0
    accelerator_type: str = ""
    """Ray's name of an accelerator, such as `H100`; empty for any."""

    @property
    def resources(self) -> dict[str, float]:
        """Return the resources as Ray names them."""
        accelerator = {f"accelerator_type:{self.accelerator_type}": 0.001} if self.accelerator_type else {}
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {}), **accelerator}

    def fits(self, node: Mapping[str, Any]) -> bool:
        """Return True if a living node of `ray.nodes()` has these resources, in use or not."""
        return bool(node["Alive"]) and all(node["Resources"].get(name, 0) >= count for name, count in self.resources.items())

    def __str__(self) -> str:
        gpus = with_noun(self.gpus, "GPU") + (f" of type {self.accelerator_type}" if self.accelerator_type else "")
        return gpus if self.gpus else with_noun(self.cpus, "CPU")


@contextmanager
def connected(address: str) -> Iterator[str]:
    """Connect this process to a cluster, and yield its address. A failure is printed as an `error` event, and the exit code is then 3.

    Args:
        address: `host:port` of the cluster; empty for RAY_ADDRESS, or else for the only cluster that this machine belongs to.
    """
    try:
        import ray
    except ImportError:
        fail("Ray is not installed", f"install the version of the cluster: {catalog.install_hint('ray')}")
    address = address or named() or _own_cluster()
    if error := unreachable(address):
        fail(f"no Ray cluster answers at `{address}`: {error}", HINT)
    try:
        _require_versions(address)
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        fail(f"no Ray cluster answers at `{address}`: {' '.join(str(error).split()) or 'no reason is known'}", HINT)
    try:
        yield address
    finally:
        ray.shutdown()


def named() -> str:
    """Return the address in RAY_ADDRESS; empty if it names no cluster."""
    address = os.environ.get("RAY_ADDRESS", "")
    return "" if address == "auto" else address


def unreachable(address: str) -> str:
    """Return why nothing listens at an address such as `host:port`, else an empty text; Ray itself tries for a minute."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
        except OSError as error:
            return str(error)
    return ""


def _own_cluster() -> str:
    """Return the address of the only cluster that has a node on this machine. Ray itself takes any one of several."""
    from ray._private.services import find_gcs_addresses

    found = sorted(find_gcs_addresses())
    if not found:
        fail("this machine belongs to no Ray cluster", HINT)
    if len(found) > 1:
        fail(
            f"this machine belongs to {len(found)} Ray clusters: {', '.join(found)}",
            "choose one: `--set launcher.options.address=HOST:PORT`",
        )
    return str(found[0])


def _require_versions(address: str) -> None:
    """Fail if the cluster has other versions. Between some releases, `ray.init` itself gives up after 45 s and names no reason."""
    from ray._private.utils import check_version_info, compute_version_info
    from ray._raylet import GcsClient

    cluster = json.loads(GcsClient(address=address).internal_kv_get(METADATA, namespace=SPACE))
    try:
        check_version_info(cluster, address)
    except RuntimeError:
        theirs, their_python = cluster["ray_version"], cluster["python_version"]
        ours, our_python = compute_version_info()
        message = (
            f"the Ray cluster at `{address}` has Ray {theirs} and Python {their_python}; oppa runs with Ray {ours} and Python {our_python}"
        )
        fail(message, f"run oppa with Python {their_python} and `ray=={theirs}`")


def fail(message: str, hint: str) -> NoReturn:
    """Print an error as an event, and to stderr for a log, and end with the exit code of a lacking environment."""
    write_event("error", message=message, hint=hint)
    sys.stderr.write(f"{message}\n")
    sys.exit(3)
