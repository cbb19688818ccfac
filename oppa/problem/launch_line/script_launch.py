"""Define what a shell script starts: its command, with the variables and the folder that the script sets."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from oppa.problem.launch_line.words import Word


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScriptLaunch:
    """Holds the command that a script starts."""

    words: tuple[Word, ...]
    environment: Mapping[str, Word]
    """Variables that the script exports, or sets in front of the command."""
    folder: Path | None
    """The folder that the script changes to; None if it stays."""
    source: str
    """Place of the command, such as `run.sh:12`."""
    takes_arguments: bool
    """True if the script passes its own arguments on."""
    header: tuple[str, ...] = ()
    """Options in lines that begin with `#SBATCH`."""
