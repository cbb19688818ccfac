"""Attack oppa with hostile files, trials and names, and count what breaks.

Figures:
    inputs          files that were handed to a reader
    accepted        inputs that a reader accepted
    clear           inputs that it refused by a clear error
    tracebacks      inputs that raised another exception
    hangs           inputs without an answer in time
    half_written    refused inputs that left files behind
    executed        names in generated scripts that ran as code
    lost_trials     hostile trials that the study does not hold as they ended
    survivors       processes of hostile trials that outlived their study
"""

import collections
import dataclasses
import functools
import importlib
import itertools
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from experiments.faults import scripts, trials
from experiments.faults.case import Case
from experiments.faults.law import Verdict, judge, limit_memory
from oppa.report.record import Section

READERS = {
    "job files": "job_files",
    "search spaces": "spaces",
    "imports": "imports",
    "launch lines": "launch_lines",
    "understood launch lines": "understood_lines",
    "outputs of programs": "outputs",
    "tables": "tables",
    "studies": "studies",
}
"""Modules below `experiments.faults.inputs`, by what their reader reads."""
FAULTS = ("tracebacks", "hangs", "half_written", "executed", "lost_trials", "survivors")
"""Figures that must be 0."""
EVERY = 1000
"""Inputs between two reports of progress."""
SHOWN = 20
"""Most faults that are listed."""

Tell = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """Holds the figures of one campaign, and its faults: a reader, an input and what it reported."""

    answers: Mapping[str, Mapping[str, int]]
    """Counts of answers, by reader."""
    faults: Sequence[tuple[str, Verdict]]
    scripts: int
    executed: int
    trials: trials.Outlived

    def total(self, answer: str) -> int:
        """Return the number of inputs with this answer, over all readers."""
        return sum(counts.get(answer, 0) for counts in self.answers.values())

    def to_dict(self) -> dict[str, int]:
        """Return the figures of the module's docstring."""
        return {
            "inputs": sum(sum(counts.values()) for counts in self.answers.values()),
            "accepted": self.total("accepted"),
            "clear": self.total("clear"),
            "tracebacks": self.total("traceback"),
            "hangs": self.total("hang"),
            "half_written": self.total("half_written"),
            "executed": self.executed,
            "lost_trials": self.trials.lost,
            "survivors": self.trials.survivors,
        }

    @property
    def sections(self) -> list[Section]:
        """Return the tables of the record."""
        answers = ("accepted", "clear", "traceback", "hang", "half_written")
        rows = [[reader, sum(counts.values()), *(counts.get(answer, 0) for answer in answers)] for reader, counts in self.answers.items()]
        outlived = self.trials
        attacks = [
            ("scripts that were generated from hostile names", self.scripts, f"{self.executed} names ran as code"),
            ("trials of a study, most of them hostile", outlived.trials, f"{outlived.lost} lost, {outlived.survivors} processes survived"),
        ]
        found = [
            Section(
                title="Files",
                text="Each input is handed to its reader, which must accept it or refuse it by a clear error, and write nothing.",
                columns=("reader", ">inputs", ">accepted", ">clear error", ">traceback", ">hang", ">half written"),
                rows=rows,
            ),
            Section(title="Scripts and trials", text="", columns=("attack", ">number", "result"), rows=attacks),
        ]
        listed = [(reader, verdict.case, verdict.answer, verdict.said.strip().splitlines()[-1]) for reader, verdict in self.faults[:SHOWN]]
        return [*found, Section(title="Faults", text="", columns=("reader", "input", "answer", "said"), rows=listed)] if listed else found


def attack(inputs: int, seed: int, tell: Tell) -> Attack:
    """Run the campaign.

    Args:
        inputs: Most inputs of each reader.
        seed: Seed of the inputs, and of their order.
        tell: Called with what is done next.
    """
    answers, faults = dict[str, Mapping[str, int]](), list[tuple[str, Verdict]]()
    for reader, module in READERS.items():
        counts = collections.Counter[str]()
        for number, verdict in enumerate(_judged(f"experiments.faults.inputs.{module}", inputs, seed), start=1):
            counts[verdict.answer] += 1
            if number % EVERY == 0:
                tell(f"{reader}: {number} of up to {inputs} hostile inputs")
            if verdict.answer not in ("accepted", "clear"):
                faults.append((reader, verdict))
                tell(f"{reader}: {verdict.answer}: {verdict.case}")
        answers[reader] = counts
    with tempfile.TemporaryDirectory() as folder:
        tell("scripts from hostile names")
        ran, executed = scripts.executed(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        outlived = trials.outlive(Path(folder), tell)
    return Attack(answers=answers, faults=faults, scripts=ran, executed=executed, trials=outlived)


def _judged(module: str, inputs: int, seed: int) -> Iterator[Verdict]:
    """Yield the verdicts on a reader's inputs, which as many processes as there are cores judge."""
    cases = itertools.islice(importlib.import_module(module).cases(seed), inputs)
    with multiprocessing.get_context("spawn").Pool(initializer=limit_memory) as pool:
        yield from pool.imap_unordered(functools.partial(_judge, module), cases, chunksize=8)


def _judge(module: str, case: Case) -> Verdict:
    return judge(case, importlib.import_module(module).read)
