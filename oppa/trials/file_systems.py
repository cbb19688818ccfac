"""Find the file system of a path, because several hosts share one on the network."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

MOUNTS = Path("/proc/mounts")
NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "9p", "afs", "virtiofs", "wekafs"}
_ESCAPED = re.compile(rb"\\([0-7]{3})")
"""A byte that the kernel writes as an octal number, such as a space."""


def is_on_network(path: Path, mounts: Path = MOUNTS) -> bool:
    """Return whether other hosts may use the file system of a path."""
    kind = file_system(path, mounts)
    return kind in NETWORK_FILE_SYSTEMS or kind.startswith("fuse.")


def file_system(path: Path, mounts: Path = MOUNTS) -> str:
    """Return the type of the file system that holds `path`, such as `ext4` or `nfs4`."""
    resolved = path.resolve()
    found, kind = Path("/"), ""
    for mount, candidate, _ in mounts_in(mounts):
        if resolved.is_relative_to(mount) and len(mount.parts) >= len(found.parts):
            found, kind = mount, candidate
    return kind


def mounts_in(table: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield the folder, the type and the options of each mount that a table of the kernel lists; names may have any bytes."""
    for line in filter(None, table.read_bytes().split(b"\n")):
        _, folder, kind, options, *_ = line.split(b" ")
        name = _ESCAPED.sub(lambda escaped: bytes([int(escaped[1], 8)]), folder)
        yield Path(os.fsdecode(name)), os.fsdecode(kind), os.fsdecode(options)
