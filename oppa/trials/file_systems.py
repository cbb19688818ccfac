"""Find the file system of a path, because several hosts share one on the network."""

from pathlib import Path

MOUNTS = Path("/proc/mounts")
NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "9p", "afs", "virtiofs", "wekafs"}


def is_on_network(path: Path, mounts: Path = MOUNTS) -> bool:
    """Return whether other hosts may use the file system of a path."""
    kind = file_system(path, mounts)
    return kind in NETWORK_FILE_SYSTEMS or kind.startswith("fuse.")


def file_system(path: Path, mounts: Path = MOUNTS) -> str:
    """Return the type of the file system that holds `path`, such as `ext4` or `nfs4`."""
    resolved = path.resolve()
    found, kind = Path("/"), ""
    for line in mounts.read_text().splitlines():
        _, at, candidate, *_ = line.split()
        mount = Path(at.replace("\\040", " "))
        if resolved.is_relative_to(mount) and len(mount.parts) >= len(found.parts):
            found, kind = mount, candidate
    return kind
