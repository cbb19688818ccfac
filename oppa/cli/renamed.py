"""Answer removed names of commands and options with their new names."""

from collections.abc import Sequence

from oppa.errors import InputError

COMMANDS = {"why": "explain", "schedule": "pipeline-schedule", "netlab": "emulate", "learn": "train-policy"}
OPTIONS = {
    "train": {"--recorded": "--eval-run", "--in-force": "--baseline-policy"},
    "control": {"--every": "--decision-interval"},
    "cluster": {"--most": "--max-scale", "--first": "--growth-order"},
}
"""The new name of each removed option, by command."""


def refuse_renamed(words: Sequence[str]) -> None:
    """Check the words after `oppa` for removed names; words after `--` belong to a command of the user's.

    Raises:
        InputError: a command or an option has a new name.
    """
    if not words:
        return
    command, options = words[0], words[1 : words.index("--") if "--" in words else None]
    if command in COMMANDS:
        raise InputError(f"`oppa {command}` has a new name", hint=f"use `oppa {COMMANDS[command]}` with the same arguments")
    for option in options:
        if (new := OPTIONS.get(command, {}).get(option.partition("=")[0])) is not None:
            raise InputError(f"`{option.partition('=')[0]}` of `oppa {command}` has a new name", hint=f"use `{new}`")
