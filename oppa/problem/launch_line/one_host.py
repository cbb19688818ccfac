"""Refuse launch lines that start the ranks of one host alone, for jobs that have several hosts."""

from collections.abc import Sequence

from oppa.errors import JobError
from oppa.problem.launch_line.starters import STARTERS, launcher_options_at, name_of, takes_value


def require_all_hosts(words: Sequence[str], hosts: int) -> None:
    """Raise JobError if torchrun would connect the ranks of each host apart from those of the others, which hangs."""
    if hosts > 1 and _is_standalone(words):
        message = f"`torchrun --standalone` connects the ranks of one host alone, and the job runs on up to {hosts} hosts"
        raise JobError(message, hint="remove `--standalone`: oppa states the rendezvous endpoint of all ranks")


def _is_standalone(words: Sequence[str]) -> bool:
    """Return True if `--standalone` stands between the launcher and the program."""
    at = launcher_options_at(words)
    while at is not None and at < len(words) and words[at].startswith("-"):
        if name_of(words[at]) == "standalone":
            return True
        at += 2 if takes_value(STARTERS["torchrun"], words[at]) else 1
    return False
