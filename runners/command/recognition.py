"""Recognise how a program prints its steps, if nothing declares it: by the first format of formats.toml of which two lines are seen."""

import re
import tomllib
from pathlib import Path

PART = re.compile(r"\{([a-z_]+)\}")
"""The name of a part in a pattern."""
ENOUGH = 2
"""Lines that establish a format. A program may print one such line by chance, as in its settings."""
LONGEST = 2_000
"""Characters of a line that are searched; a program may print its data."""


def formats():
    """Return the formats of formats.toml by name, with the parts of their patterns in place."""
    declared = tomllib.loads(Path(__file__).with_name("formats.toml").read_text())
    parts = declared.pop("parts")
    return {name: {**each, "pattern": PART.sub(lambda part: parts[part[1]], each["pattern"])} for name, each in declared.items()}


FORMATS = formats()


def end_of(name):
    """Return the pattern of the line that ends the steps of a format; None if it has none."""
    end = FORMATS.get(name, {}).get("end")
    return re.compile(end) if end else None


def counts_batches(name):
    """Return whether the lines of a format count batches, of which gradient accumulation makes a step."""
    return FORMATS[name].get("counts") == "batches"


class Recognition:
    """Tries all formats on a program's lines, and keeps the lines that matched until one is established."""

    def __init__(self):
        self.patterns = {name: re.compile(declared["pattern"]) for name, declared in FORMATS.items()}
        self.marks = {name: re.compile(declared["mark"]) for name, declared in FORMATS.items() if "mark" in declared}
        """Marks that were not seen yet, by format."""
        self.seen = dict.fromkeys(self.patterns, 0)
        self.lines = []
        self.name = ""
        """The format that was recognised; empty before."""

    def read(self, texts, now_s):
        """Read lines that came at once; return those so far with their times once a format is established, else an empty list."""
        matched = []
        for text in texts:
            self.marks = {name: mark for name, mark in self.marks.items() if not mark.search(text[:LONGEST])}
            names = [name for name, pattern in self.patterns.items() if pattern.search(text[:LONGEST])]
            for name in names:
                self.seen[name] += 1
            matched += [text] if names else []
        self.lines += [(matched, now_s)] if matched else []
        established = [name for name, count in self.seen.items() if count >= ENOUGH and name not in self.marks]
        if not established:
            return []
        self.name = established[0]
        lines, self.lines = self.lines, []
        return lines
