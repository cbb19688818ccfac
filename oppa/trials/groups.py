"""The control groups that this process is in: both generations, as the kernel shows them."""

from pathlib import Path


def own_group(controller: str) -> Path:
    """The folder of the group that this process is in: the controller's own hierarchy (version 1), else the one of all (version 2).

    Raises:
        FileNotFoundError: if neither is mounted.
    """
    within = {kinds: path for _, kinds, path in (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())}
    mounts = [line.split()[1:4] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount, kind, options in mounts:
        if kind == "cgroup" and controller in options.split(","):
            path = next((path for kinds, path in within.items() if controller in kinds.split(",")), "/")
            return _visible(Path(mount), path)
    for mount, kind, _ in mounts:
        if kind == "cgroup2":
            return _visible(Path(mount), within.get("", "/"))
    raise FileNotFoundError("no control groups are mounted")


def is_v2(group: Path) -> bool:
    """Whether the group is of version 2."""
    return (group / "cgroup.controllers").exists()


def _visible(mount: Path, path: str) -> Path:
    """The group itself, or, where a container shows us only a part of the tree, the top of what it shows."""
    group = mount / path.lstrip("/")
    return group if group.is_dir() else mount
