"""Recognise how a program prints its steps, if nothing declares it: by the first format of formats.toml of which two lines are seen."""

import re

from oppa.problem.command_table import formats

ENOUGH = 2
"""Lines that establish a format. A program may print one such line by chance, as in its settings."""


class Recognition:
    """Tries all formats on a program's lines, and keeps the lines that matched until one is established.

    In a format that counts batches, one batch is taken for a step.
    """

    def __init__(self):
        self.patterns = {name: re.compile(declared["pattern"]) for name, declared in formats().items()}
        self.seen = dict.fromkeys(self.patterns, 0)
        self.lines = []
        self.name = ""
        """The format that was recognised; empty before."""

    def read(self, texts, now_s):
        """Read lines that came at once; return those so far with their times once a format is established, else an empty list."""
        self.lines.append((texts, now_s))
        for text in texts:
            for name, pattern in self.patterns.items():
                self.seen[name] += bool(pattern.search(text))
        established = [name for name, count in self.seen.items() if count >= ENOUGH]
        if not established:
            if not any(self.seen.values()):
                self.lines.clear()  # nothing to replay
            return []
        self.name = established[0]
        lines, self.lines = self.lines, []
        return lines
