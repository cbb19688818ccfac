"""Connect a program of this package to a Ray cluster, and describe its nodes."""

import dataclasses
import json
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from oppa import catalog

NAMESPACE = "oppa"
CONNECT_S = 10.0
HINT = "run oppa on a node of the cluster, for example by `ray job submit`, or name it: `--set launcher.options.address=HOST:PORT`"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The resources that a trial holds on each host."""

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
        gpus = f"{self.gpus} GPU{'s' * (self.gpus != 1)}" + (f" of type {self.accelerator_type}" if self.accelerator_type else "")
        return gpus if self.gpus else f"{self.cpus} CPU{'s' * (self.cpus != 1)}"


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect this process to a cluster; what fails is printed as an `error` event, and ends the process with exit code 3.

    Args:
        address: `host:port` of the cluster; empty for RAY_ADDRESS, or for the cluster that this machine belongs to.
    """
    try:
        import ray
    except ImportError:
        fail("Ray is not installed", f"install the version of the cluster: {catalog.install_hint('ray')}")
    _require_listening(address or os.environ.get("RAY_ADDRESS", ""))
    try:
        ray.init(address=address or "auto", namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        words = " ".join(str(error).split())
        if "ersion mismatch" in words:
            fail(
                f"this environment differs from the cluster's: {words}", "run oppa with the versions of Ray and Python that the cluster has"
            )
        fail(f"no Ray cluster answers{f' at `{address}`' if address else ''}: {words}", HINT)
    try:
        yield
    finally:
        ray.shutdown()


def _require_listening(address: str) -> None:
    """Fail at once if nothing listens at an address such as `host:port`; Ray itself tries for a minute."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
        except OSError as error:
            fail(f"no Ray cluster answers at `{address}`: {error}", HINT)


def tell(event: str, **facts: Any) -> None:
    """Print an event to stdout, as one line of JSON."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def fail(message: str, hint: str) -> None:
    """Print an error as an event, and to stderr for a log, and end with the exit code of a lacking environment."""
    tell("error", message=message, hint=hint)
    sys.stderr.write(f"{message}\n")
    sys.exit(3)
