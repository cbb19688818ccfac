"""Describe the software that a study's trials run on: the programs of the launch line, the interpreter, and its versions."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Self

SHOWN = 12
"""Digits of a SHA-256 that are displayed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """Describes the programs that start trials and run them; all paths are absolute."""

    programs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Absolute paths of the launch line's programs, as PATH resolved them, by word; empty if oppa starts the interpreter."""
    python: str = ""
    """Interpreter; empty if the launch line does not show one, as in `bash train.sh`."""
    prefix: str = ""
    """Folder of the interpreter's environment."""
    python_version: str = ""
    torch: str = ""
    """Version of torch that the interpreter has; empty if it has none."""
    cuda: str = ""
    """Version of CUDA that torch was built for; empty if it was built for none, or is not known."""
    nccl: str = ""
    """Version of NCCL that torch loads; empty if it is not known."""
    driver: str = ""
    """Version of the NVIDIA driver on the host that started the study; empty if that host has none."""
    image: str = ""
    """Container image as the environment states it; empty if it states none."""
    path: str = ""
    """PATH of the study, kept if programs of the launch line search PATH for their interpreter."""
    folder: str = ""
    """Folder in which trials start, which a launch line's relative paths need; empty if it is not known."""
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """SHA-256 of the program and of the configuration files of the launch line, by their paths there; earlier studies have none."""

    @property
    def launcher(self) -> str:
        """Return the program that a trial starts first; empty if that is the interpreter."""
        return next((found for found in self.programs.values() if found != self.python), "")

    @property
    def interpreter(self) -> str:
        """Return the interpreter with its versions, in one line."""
        if not self.python:
            return "unknown, because the launch line does not show it"
        return f"{self.python}: Python {self.python_version}, {f'torch {self.torch}' if self.torch else 'no torch'}"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Return names and values to display."""
        known = {"driver": self.driver, "CUDA": self.cuda, "NCCL": self.nccl}
        stack = ", ".join(f"{name} {version}" for name, version in known.items() if version)
        more = {"launcher": self.launcher, "stack": stack, "image": self.image}
        return [("interpreter", self.interpreter), *((name, value) for name, value in more.items() if value)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as they are written to JSON."""
        return {**dataclasses.asdict(self), "programs": dict(self.programs), "files": dict(self.files), "launcher": self.launcher}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the software that `to_dict` wrote, in this version of oppa or in another."""
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})

    def differences(self, other: Self) -> Iterator[tuple[str, str, str]]:
        """Yield what differs between the two, each with both values: the environment, versions, image, programs of the launch line.

        One environment may have its interpreter at several paths, so its folder is compared instead. What either does not state is no
        difference: earlier studies did not record it, and a login node may have no driver.
        """
        for name, field in (("environment", "prefix"), ("Python", "python_version"), ("torch", "torch")):
            ours, theirs = getattr(self, field), getattr(other, field)
            if ours != theirs:
                yield name, ours or "none", theirs or "none"
        for name, field in (("CUDA", "cuda"), ("NCCL", "nccl"), ("driver", "driver"), ("image", "image")):
            ours, theirs = getattr(self, field), getattr(other, field)
            if ours and theirs and ours != theirs:
                yield name, ours, theirs
        for word in sorted({*self.programs, *other.programs}):
            ours, theirs = self.programs.get(word, "none"), other.programs.get(word, "none")
            if ours != theirs:
                yield f"`{word}`", ours, theirs


def edited(then: Software, now: Software) -> Iterator[tuple[str, str, str]]:
    """Yield the files of the launch line whose content is not that of earlier trials, with the beginnings of both SHA-256."""
    for path, digest in sorted(then.files.items()):
        here = now.files.get(path, "missing")
        if here != digest:
            yield f"`{path}`", digest[:SHOWN], here[:SHOWN]


def minor_release(version: str) -> str:
    """Return a version without its patch level and its build: `2.13` of `2.13.0+cpu`."""
    return ".".join(version.split(".")[:2])
