"""What this host lets oppa do, looked at rather than guessed."""

import dataclasses
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from oppa import catalog
from oppa.errors import OppaError
from oppa.trials.quota import quotas_lacking
from oppa.trials.runner import load_runner
from oppa.units import format_bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at. What is not `needed` only widens what oppa can do."""

    name: str
    works: bool
    found: str
    hint: str = ""
    needed: bool = False


def checks() -> Iterator[Check]:
    """Everything that decides what can run here."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check(name="Python", works=sys.version_info >= (3, 11), found=version, hint="oppa needs 3.11 or later", needed=True)
    linux = sys.platform == "linux"
    yield Check(
        name="operating system", works=linux, found=sys.platform, hint="trials are supervised through Linux's own means", needed=True
    )
    yield _torch()
    yield Check(name="processors", works=True, found=f"{len(os.sched_getaffinity(0))} cores")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield Check(name="memory", works=True, found=format_bytes(memory))
    yield _cuda()
    lacking = quotas_lacking()
    yield Check(
        name="CPU quotas", works=not lacking, found=lacking or "a rank can be a device", hint="ranks share the cores as the kernel likes"
    )
    for command, use in (("torchrun", "`best/run.sh`"), ("srun", "trials on a Slurm allocation")):
        where = shutil.which(command) or _beside_python(command)
        yield Check(name=command, works=where is not None, found=where or "not installed", hint=f"needed for {use}")
    yield from map(_runner, catalog.names("runners"))


def _torch() -> Check:
    spec = importlib.util.find_spec("torch")
    if spec is None:
        return Check(name="torch", works=False, found="not installed", hint="`pip install torch`", needed=True)
    import torch

    gloo = torch.distributed.is_available() and torch.distributed.is_gloo_available()
    found = f"{torch.__version__}, " + ("gloo" if gloo else "without gloo")
    return Check(name="torch", works=gloo, found=found, hint="trials on CPUs talk over gloo", needed=True)


def _cuda() -> Check:
    if not Path("/proc/driver/nvidia").exists():
        return Check(name="CUDA devices", works=False, found="none", hint="trials run on CPUs")
    import torch

    count = torch.cuda.device_count()
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(count))
    return Check(
        name="CUDA devices", works=count > 0, found=names or "driver without a usable device", hint="install a CUDA build of torch"
    )


def _runner(name: str) -> Check:
    try:
        runner = load_runner(catalog.find("runners", name))
    except OppaError as error:
        return Check(name=f"runner {name}", works=False, found=error.message, hint=error.hint)
    return Check(name=f"runner {name}", works=True, found=runner.description)


def _beside_python(command: str) -> str | None:
    path = Path(sys.executable).with_name(command)
    return str(path) if path.exists() else None
