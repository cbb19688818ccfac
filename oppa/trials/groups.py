"""Find the control group of this process, in version 1 and version 2 of cgroups."""

from pathlib import Path


def own_group(controller: str) -> Path:
    """Return the folder of the control group that this process is in.

    The folder is in the controller's own hierarchy (version 1) if that is mounted, else in the unified hierarchy (version 2).

    Raises:
        FileNotFoundError: neither hierarchy is mounted.
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
    """Return True if the control group is of version 2."""
    return (group / "cgroup.controllers").exists()


def _visible(mount: Path, path: str) -> Path:
    """Return the group's folder, or the top of the visible tree if a container shows only a part of it."""
    group = mount / path.lstrip("/")
    return group if group.is_dir() else mount
