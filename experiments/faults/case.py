"""Define one hostile input: files that a user could hand to oppa."""

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """Holds the name of an input, and its files by their names in a folder."""

    name: str
    files: dict[str, bytes]

    def write(self, folder: Path) -> None:
        """Write the files into a folder that exists."""
        for name, body in self.files.items():
            (folder / name).write_bytes(body)
