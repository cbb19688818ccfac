"""Name the folders that a tuner makes outside its study, so that a later clean-up can identify the tuner that made them.

The form is oppa-<first letters of the study's id>-<checksum of the host's name>-<the tuner's process id>-<its start time>-<random>. Hosts
may share the folder for temporary files, and each can tell only which of its own tuners live.
"""

import os
import re
import zlib
from pathlib import Path

from oppa.trials import processes
from oppa.trials.processes import Process

_NAME = re.compile(r"oppa-.*-(\d+)-(\d+)-[0-9a-f]+")


def name(study: str) -> str:
    """Return a new name for a folder of this study and this tuner."""
    tuner = processes.this_process()
    return f"oppa-{study[:8]}-{_host()}-{tuner.pid}-{tuner.started}-{os.urandom(3).hex()}"


def abandoned(parent: Path, study: str) -> list[Path]:
    """Return the folders of this study in `parent` whose tuners ran on this host and are dead."""
    found = ((folder, _NAME.fullmatch(folder.name)) for folder in parent.glob(f"oppa-{study[:8]}-{_host()}-*"))
    return [folder for folder, match in found if match and not processes.is_living(Process(int(match[1]), int(match[2])))]


def _host() -> str:
    """Return a short form of this host's name: sockets in these folders have paths of at most 108 bytes."""
    return f"{zlib.crc32(processes.host_of_processes().encode()):08x}"
