"""Record the connections of every Python process that has a folder on its PYTHONPATH: to other machines, and look-ups of their names."""

import os
from collections.abc import Mapping
from pathlib import Path

HOOK = """
import ipaddress, os, socket, sys

def note(event, arguments):
    if event not in ("socket.connect", "socket.getaddrinfo"):
        return
    address = arguments[1] if event == "socket.connect" else arguments
    host = address[0] if isinstance(address, tuple) else None
    if host in (None, "", "localhost", socket.gethostname()):
        return
    try:
        if ipaddress.ip_address(host).is_loopback or ipaddress.ip_address(host).is_unspecified:
            return
    except ValueError:
        pass
    with open(os.environ["CONNECTIONS"], "a") as file:
        file.write(f"{event} {host} {sys.argv}\\n")

sys.addaudithook(note)
with open(os.environ["CONNECTIONS"] + ".processes", "a") as file:
    file.write(f"{sys.argv}\\n")
"""


class Connections:
    """Holds what processes recorded."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder / "hook", folder / "connections"
        self._folder.mkdir()
        (self._folder / "sitecustomize.py").write_text(HOOK)
        self._file.touch()

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the variables that make a Python process record its connections."""
        path = os.pathsep.join([str(self._folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {"PYTHONPATH": path, "CONNECTIONS": str(self._file)}

    def read(self) -> str:
        """Return the connections so far, one a line."""
        return self._file.read_text()

    def processes(self) -> int:
        """Return how many processes recorded."""
        return len(self._file.with_name("connections.processes").read_text().splitlines())
