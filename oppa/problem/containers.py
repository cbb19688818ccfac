"""Find the containers that a launch line starts, and mount folders into them, where the line's own mounts lack them.

Trials need the folder of oppa's client, which PYTHONPATH names, and that of the study, into which they write.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from oppa.problem.launch_line.starters import ASSIGNMENT, STARTERS, Starter, name_of, options_at, takes_value

_MOUNTS: Mapping[str, tuple[str, ...]] = {
    "srun": ("container-mounts",),
    "apptainer": ("bind", "B"),
    "singularity": ("bind", "B"),
}
"""Options that mount folders, by the program that starts a container; the first is added where none is stated."""
_IMAGE = "container-image"
_DIGEST = "@sha256:"
_FILES = frozenset([".sqsh", ".squashfs"])
"""Suffixes of images that pyxis takes for a name, and people mean as files."""
_OF_STEP = frozenset([_IMAGE, "container-name"])
"""Options with which a step runs in a container."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Describes a folder that a container has at the same place."""

    source: PurePath
    is_writable: bool

    def covers(self, folder: Path, *, written: bool) -> bool:
        """Return whether the container has the folder at its place, and may write to it if trials do."""
        return folder.is_relative_to(self.source) and (self.is_writable or not written)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """Describes a container that a launch line starts."""

    image: str
    """File or name of its image; empty if the line does not state it, as with `--container-name`."""
    option: str
    """The option that mounts folders, without dashes."""
    mounts: tuple[Mount, ...]
    begins: int
    """Index of the word at which further options may stand."""
    stated_at: int | None
    """Index of the word that ends with the last value of the option; None if the line does not state it."""

    @property
    def has_tag(self) -> bool:
        """Return whether a registry chooses the image at each start: the image is in one, and its name has no digest.

        Apptainer takes a name without `://` for a file or a folder, pyxis one that begins as a path.
        """
        if self.option == _MOUNTS["srun"][0]:
            is_named = bool(self.image) and not self.image.startswith(("/", ".")) and PurePath(self.image).suffix not in _FILES
        else:
            is_named = "://" in self.image and not self.image.startswith("instance://")
        return is_named and _DIGEST not in self.image

    def lacking(self, client: Path, study: Path) -> list[Path]:
        """Return those of two folders that the container does not have: that of oppa's client, and that of the study."""
        return [
            folder
            for folder, written in ((client, False), (study, True))
            if not any(each.covers(folder, written=written) for each in self.mounts)
        ]


def with_mounts(words: Sequence[str], *, client: Path, study: Path) -> list[str]:
    """Return a launch line whose containers have the folder of oppa's client and that of the study."""
    found = list(words)
    for container in reversed([*containers(words)]):
        if not (added := ",".join(map(str, container.lacking(client, study)))):
            continue
        if container.stated_at is None:
            found.insert(container.begins, f"--{container.option}={added}")
        else:
            found[container.stated_at] += f",{added}"
    return found


def containers(words: Sequence[str]) -> Iterator[Container]:
    """Yield the containers that a launch line starts, in their order."""
    at = 0
    while at < len(words):
        starter = STARTERS.get(PurePath(words[at]).name)
        if starter is None and not ASSIGNMENT.match(words[at]):
            return
        begins = at + 1 + (options_at(starter, words[at + 1 :]) if starter else 0)
        options, at = _options(words, begins, starter) if starter else ([], begins)
        if starter and starter.name in _MOUNTS and (starter.name != "srun" or any(name in _OF_STEP for name, _, _ in options)):
            of_step = {name: value for name, value, _ in options}.get(_IMAGE, "")
            image = of_step if starter.name == "srun" else "".join(words[at - 1 : at])
            yield _container(starter.name, image, options, begins)


def _container(starter: str, image: str, options: Sequence[tuple[str, str, int]], begins: int) -> Container:
    stated = [(value, index) for name, value, index in options if name in _MOUNTS[starter]]
    return Container(
        image=image,
        option=_MOUNTS[starter][0],
        mounts=tuple(mount for value, _ in stated for text in value.split(",") for mount in _mount(text)),
        begins=begins,
        stated_at=stated[-1][1] if stated else None,
    )


def _options(words: Sequence[str], at: int, starter: Starter) -> tuple[list[tuple[str, str, int]], int]:
    """Return the options of a starter, and the index of what it starts.

    Each option has its value, and the index of the word that ends with it.
    """
    found: list[tuple[str, str, int]] = []
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        at += 1
        if word == "--":
            break
        if takes_value(starter, word) and at < len(words):
            found.append((name_of(word), words[at], at))
            at += 1
        elif "=" in word or word.startswith("--"):
            found.append((name_of(word), word.partition("=")[2], at - 1))
        else:
            found.append((word[1], word[2:], at - 1))
    return found, at + starter.operands


def _mount(text: str) -> Iterator[Mount]:
    """Yield what `SOURCE[:TARGET[:FLAGS]]` mounts, if it has the same place in the container."""
    source, *rest = text.split(":")
    target, flags = (*rest, "", "")[:2]
    if source and target in ("", source):
        yield Mount(source=PurePath(source), is_writable="ro" not in re.split(r"\W", flags))
