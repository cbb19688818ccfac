"""The software that a study's trials run on: the programs of the launch line, the interpreter, and its versions."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Self


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What starts trials and what runs them; all paths are absolute."""

    programs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Words of the launch line that name a program, each with the program that PATH found; empty where oppa starts the interpreter."""
    python: str = ""
    """The interpreter; empty where the launch line does not show one, as in `bash train.sh`."""
    prefix: str = ""
    """The folder of the interpreter's environment."""
    python_version: str = ""
    torch: str = ""
    """The version of torch that the interpreter has; empty where it has none."""
    path: str = ""
    """PATH of the study, kept where programs of the launch line leave it to PATH what they run on."""

    @property
    def launcher(self) -> str:
        """The program that a trial starts first; empty where that is the interpreter."""
        return next((found for found in self.programs.values() if found != self.python), "")

    @property
    def interpreter(self) -> str:
        """The interpreter with its versions, in a line."""
        if not self.python:
            return "not shown by the launch line"
        return f"{self.python}: Python {self.python_version}, {f'torch {self.torch}' if self.torch else 'no torch'}"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Names and values for people."""
        launcher = [("launcher", self.launcher)] if self.launcher else []
        return [("interpreter", self.interpreter), *launcher]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they are written to JSON."""
        return {**dataclasses.asdict(self), "programs": dict(self.programs), "launcher": self.launcher}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(**{name: value for name, value in values.items() if name != "launcher"})

    def differences(self, other: Self) -> Iterator[tuple[str, str, str]]:
        """What differs between the two, each with both values: the environment, versions, programs of the launch line.

        One environment may spell its interpreter in several ways, so its folder is compared instead.
        """
        for name, field in (("environment", "prefix"), ("Python", "python_version"), ("torch", "torch")):
            ours, theirs = getattr(self, field), getattr(other, field)
            if ours != theirs:
                yield name, ours or "none", theirs or "none"
        for word in sorted({*self.programs, *other.programs}):
            ours, theirs = self.programs.get(word, "none"), other.programs.get(word, "none")
            if ours != theirs:
                yield f"`{word}`", ours, theirs
