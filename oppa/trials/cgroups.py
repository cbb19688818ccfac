"""Limit the CPU time of each rank by a control group of its own, so that a rank acts as a device.

Both versions of cgroups work: version 1 (the `cpu` hierarchy) and version 2 (`cpu.max`, in a folder that was delegated to us).
"""

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from oppa.trials import scratch_dirs
from oppa.trials.file_systems import mounts_in

PERIOD_US = 20_000
"""The period of a quota. It is much shorter than a training step, so that a rank's turns even out within a step.
The kernel's default is 100 ms."""

_REMOVAL_S = 1.0


class CpuGroups:
    """Limits each rank to a number of cores in each period, by a control group of its own; raises OSError if groups cannot be made."""

    def __init__(self, study: str, cpus: Sequence[float], *, period_us: int = PERIOD_US) -> None:
        self.folder = _home() / scratch_dirs.name(study)
        self.ranks = [self.folder / f"rank{rank}" for rank in range(len(cpus))]
        self.folder.mkdir()
        try:
            if is_v2(self.folder):
                (self.folder / "cgroup.subtree_control").write_text("+cpu")
            for rank, cores in zip(self.ranks, cpus, strict=True):
                rank.mkdir()
                _limit(rank, cores, period_us)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Remove the groups. Their processes have ended, but the kernel may need a moment, so this retries for a second."""
        _remove(self.folder)


def quotas_lacking() -> str:
    """Return why ranks cannot have CPU quotas here; empty if they can."""
    try:
        CpuGroups("probe", [1]).close()
    except OSError as error:
        return f"CPU groups cannot be created: {error}"
    return ""


def remove_abandoned(study: str) -> None:
    """Remove the groups that dead tuners of this study did not remove."""
    with contextlib.suppress(OSError):
        for folder in scratch_dirs.abandoned(_home(), study):
            _remove(folder)


def own_group(controller: str) -> Path:
    """Return the folder of the control group that this process is in.

    The folder is in the controller's own hierarchy (version 1) if that is mounted, else in the unified hierarchy (version 2).

    Raises:
        FileNotFoundError: neither hierarchy is mounted.
    """
    within = {kinds: path for _, kinds, path in (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())}
    mounts = list(mounts_in(Path("/proc/self/mounts")))
    for mount, kind, options in mounts:
        if kind == "cgroup" and controller in options.split(","):
            path = next((path for kinds, path in within.items() if controller in kinds.split(",")), "/")
            return _visible(mount, path)
    for mount, kind, _ in mounts:
        if kind == "cgroup2":
            return _visible(mount, within.get("", "/"))
    raise FileNotFoundError("no control groups are mounted")


def is_v2(group: Path) -> bool:
    """Return True if the control group is of version 2."""
    return (group / "cgroup.controllers").exists()


def _home() -> Path:
    """Return the folder in which groups are made: this process's own group (version 1), or the nearest delegated one (version 2).

    Raises:
        PermissionError: no group was delegated (version 2).
    """
    group = own_group("cpu")
    if not is_v2(group):
        return group
    for folder in (group, *group.parents):
        control = folder / "cgroup.subtree_control"
        if control.exists() and os.access(folder, os.W_OK) and "cpu" in control.read_text().split():
            return folder
    raise PermissionError(f"neither `{group}` nor a parent of it is writable and delegates the `cpu` controller")


def _limit(group: Path, cpus: float, period_us: int) -> None:
    quota_us = max(1000, round(cpus * period_us))
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{quota_us} {period_us}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(period_us))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + _REMOVAL_S
    while time.monotonic() < deadline:
        for group in (*folder.glob("rank*"), folder):
            with contextlib.suppress(OSError):
                group.rmdir()
        if not folder.exists():
            return
        time.sleep(0.02)


def _visible(mount: Path, path: str) -> Path:
    """Return the group's folder, or the top of the visible tree if a container shows only a part of it."""
    group = mount / path.lstrip("/")
    return group if group.is_dir() else mount
