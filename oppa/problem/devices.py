"""Identify a device by the names that drivers, Slurm and clouds give it, from the aliases in `priors/hardware/*.toml`.

A name is compared as a set of words: lower case, split at all characters but letters and digits, without vendors and counts. A name matches
an alias if the two sets are equal. A part of a device (MIG, time slices) has an extra word, so it matches nothing.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field

from oppa import catalog
from oppa.errors import InputError, JobError
from oppa.problem.bounded_text import read_text
from oppa.problem.cluster import HardwareFile
from oppa.problem.declaration import DeclaredTable, parse, read, validate

CATALOG = "priors/hardware"
CPU = "CPU"
GENERIC = "GPU"
"""Id of the generic device, which replaces devices that the catalogue lacks."""
TOLERANCE = 1.05
"""Factor by which a memory limit may exceed CUDA's report: `80 GiB` are accepted for a card of 79.2 GiB."""

_STATE = 'add `memory_limit = "..."`, what one rank may allocate; `oppa init` writes a job file with what this machine offers'
_VENDORS = frozenset(("nvidia", "amd", "gpu"))


class _Memory(DeclaredTable):
    model_config = ConfigDict(extra="ignore")
    bytes: Annotated[int | float, Field(gt=0)]


class _File(DeclaredTable):
    """Validates the keys of a file that identify its device."""

    model_config = ConfigDict(extra="ignore")
    memory: _Memory
    aliases: tuple[str, ...] = Field(default=(), strict=False)
    shared_aliases: tuple[str, ...] = Field(default=(), strict=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Describes one device of the catalogue, with its names as sets of words."""

    id: str
    memory_bytes: int
    """Whole memory as CUDA reports it."""
    names: frozenset[frozenset[str]]
    shared: frozenset[frozenset[str]]
    """Names that it shares with devices of another memory size."""

    @property
    def chip(self) -> str:
        """Return the model without memory size and form factor: `a100` for `A100-80GB`."""
        return self.id.partition("-")[0].lower()


def identify(name: str, memory_bytes: int | None = None) -> str | None:
    """Return the catalogue's id of a device; None if the catalogue does not have it.

    Args:
        name: An id of the catalogue, or a name such as `NVIDIA H100 80GB HBM3`, `gpu:a100:8` or `p4d.24xlarge`.
        memory_bytes: The memory limit. It selects the smallest of the devices that share the name and have that much memory.
    """
    known, words = devices(), frozenset(_words(name))
    if name in known:
        return name
    if found := next((device.id for device in known.values() if words in device.names), None):
        return found
    if memory_bytes is None:
        return None
    return next((device.id for device in sharing(name) if memory_bytes <= device.memory_bytes * TOLERANCE), None)


def sharing(name: str) -> Sequence[Device]:
    """Return the devices that share a name, the smallest memory first; more than one makes the name ambiguous."""
    words = frozenset(_words(name))
    return sorted((device for device in devices().values() if words in device.shared), key=lambda device: device.memory_bytes)


def nearest(name: str) -> str | None:
    """Return the id of a device with the same chip, such as `H100` for `NVIDIA H100 NVL`; None if there is none."""
    words = _words(name)
    chips = {*words, *(first + second for first, second in itertools.pairwise(words))}
    kin = [device for device in devices().values() if device.chip in chips]
    return max(kin, key=lambda device: max(len(each.intersection(words)) for each in device.names | device.shared)).id if kin else None


def memory_of(name: str) -> int:
    """Return the whole memory of a device, in bytes, for a job that states no limit.

    Raises:
        JobError: the device is a CPU, the catalogue does not have it, or the name fits several of different sizes.
    """
    if name == CPU:
        raise JobError("`[cluster]` lacks `memory_limit`, and a rank on a CPU has no memory of its own", hint=_STATE)
    id_ = identify(name)
    if id_ in (None, GENERIC):
        several = ", ".join(f"`{device.id}`" for device in sharing(name))
        if several:
            raise JobError(f'`device = "{name}"` is ambiguous: {several}', hint="name one of them, or set `memory_limit` in [cluster]")
        raise JobError(f'`[cluster]` lacks `memory_limit`, and the device catalogue does not have `device = "{name}"`', hint=_STATE)
    return devices()[id_].memory_bytes


def read_hardware_file(name: str, folder: Path) -> HardwareFile:
    """Return the hardware file that a job names: a path relative to `folder`, or an id of the catalogue.

    Raises:
        InputError: there is no such file, or it cannot be read.
    """
    path = catalog.find(CATALOG, name, base=folder)
    return HardwareFile(name=path.stem, text=read_text(path, error=InputError, hint="name a readable TOML file in UTF-8"))


def memory_in(file: HardwareFile) -> int:
    """Return the whole memory of the device that a hardware file describes, in bytes; raises InputError if the file is wrong."""
    source = f"{file.name}.toml"
    return round(validate(_File, parse(file.text, source=source, error=InputError), error=InputError, source=source).memory.bytes)


def unknown_device(name: str, memory_bytes: int) -> str:
    """Return a message for users if the catalogue does not have a device, else "".

    The message states what that costs, and what to do.
    """
    if name == GENERIC or identify(name, memory_bytes):
        return ""
    near = nearest(name)
    return (
        f"`{name}` is not in the device catalogue{f', `{near}` is the nearest' if near else ''}. "
        "Predictions use a generic GPU: predicted speeds may be off by a factor of three, and a search may take more trials. "
        f"If it is one of {', '.join(id_ for id_ in devices() if id_ not in (CPU, GENERIC))}, set `device` to that. "
        "Else `oppa doctor --measure --out FILE.toml` measures it, and `hardware` in [cluster] names that file. "
        f"Or describe it in {catalog.root() / CATALOG}/NAME.toml, as priors/README.md shows."
    )


@functools.cache
def devices() -> dict[str, Device]:
    """Return the catalogue's devices by id; raises InputError if a file is wrong."""
    return {id_: _read(id_) for id_ in catalog.names(CATALOG)}


def _read(id_: str) -> Device:
    file = read(_File, catalog.find(CATALOG, id_), error=InputError)
    return Device(id=id_, memory_bytes=round(file.memory.bytes), names=_sets([id_, *file.aliases]), shared=_sets(file.shared_aliases))


def _sets(names: Sequence[str]) -> frozenset[frozenset[str]]:
    return frozenset(words for name in names if (words := frozenset(_words(name))))


def _words(name: str) -> list[str]:
    """Return the words of a name in order, without what `nvidia-smi -L` and Slurm add: index, UUID, `gres/gpu:`, counts."""
    name = re.sub(r"\([^)]*:[^)]*\)\s*$", "", name.strip().lower())  # drop a UUID, Slurm's sockets and indices; keep `(40 GB SXM4)`
    name = re.sub(r"^(gpu \d+:|(gres[/:])?gpu:)", "", name)
    name = re.sub(r"[:=]\d+\s*$", "", name)
    name = re.sub(r"(\d)\s+(gb|gib)\b", r"\1\2", name).replace("gib", "gb")
    return [word for word in re.findall(r"[a-z0-9]+", name) if word not in _VENDORS and not re.fullmatch(r"\d+x", word)]
