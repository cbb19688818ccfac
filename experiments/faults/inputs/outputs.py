"""Hostile outputs of programs: lines whose steps, times, rates or objective are read as the runner `command` reads them."""

import functools
import importlib.util
import json
import random
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.faults.case import Case
from experiments.faults.inputs import mutations
from oppa import catalog
from oppa.errors import MeasurementError

BETTER = ("higher", "lower")
PATTERNS: dict[str, tuple[str, str]] = {
    "objective": (r"latency (?P<value>\S+)", "latency {}"),
    "step and objective": (r"step (?P<step>\d+): (?P<value>[0-9.e+-]+)", "step {0}: {0}"),
    "seconds": (r"took (?P<s>.*) s", "took {} s"),
    "step and milliseconds": (r"step (?P<step>[0-9]+) took (?P<ms>[-+0-9.eE,]+) ms", "step {0} took {0} ms"),
    "rate": (r"(?P<per_s>\S+) it/s", "{} it/s"),
    "tokens": (r"(?P<tokens_per_s>\S+) tok", "{} tok"),
    "bar": (r"(?P<done>\d+)/\d+ \[", "{}/9 ["),
    "any step": (r"step (?P<step>\S+)", "step {}"),
    "any bar": (r"done (?P<done>\S+)", "done {}"),
    "loss and memory": (r"(?P<loss>\S+) (?P<memory_gib>\S+)", "{0} {0}"),
    "nothing": ("x", "x{}"),
}
"""Patterns of a job file, each with a line that it matches, by what they read."""
LINES = {
    "megatron": "iteration {0}/ 100 | elapsed time per iteration (ms): {0} | lm loss: {0} |",
    "torchtitan": "step: {0}  loss:  {0}  grad_norm:  1.00  memory:  {0}GiB(2%)  tps: 9",
    "hf-trainer": "{{'loss': '{0}', 'epoch': '{0}'}}",
    "lightning": "Epoch {0}:  10%|#| {0}/100 [00:00<00:00, 30.50it/s]",
    "step-ms": "step {0} | loss 2.5 | {0} ms",
    "step-s": "iteration {0}: {0} s",
    "progress-bar": "12%|#| {0}/100 [00:01<00:09, {0}it/s]",
    "s-per-step": "{} s/it",
    "steps-per-s": "{} it/s",
    "tokens-per-s": "{} tokens/s",
}
"""A line of each known format."""
ODD = (
    *(
        "0",
        "1",
        "2",
        "0.5",
        "-1",
        "-0.0",
        "1e999",
        "1e308",
        "1e-308",
        "5e-324",
        "1e-400",
        "nan",
        "inf",
        "1.2.3",
        ".",
        "..",
        ",",
        "1,2",
        ",,",
    ),
    *("", " ", "1e", "e5", "1e+", "+", "-", "0x10", "1_000", "²", "٣", "４", "1" * 20, "9" * 400, "9" * 5_000, "1" + ",000" * 900),
    *(str(2**31), str(2**53), str(2**63), str(2**64), "999999999999", "1000000", "\x1b[31m1\x1b[0m", "\0", "\ud800", "1\u2028", "1\r2"),
)
"""Texts that stand where a number is expected."""
CHUNK = 1 << 16
"""Bytes that are read at once."""
MOST_STEPS = 1_000_000
"""Most steps that a case may be read as."""
Content = tuple[str, str, str, int, list[str]]
"""The name of a case, its pattern, the values that are better, the batches of a step, and the printed lines."""


def cases(seed: int) -> Iterator[Case]:
    """Yield every case once, in an order that the seed decides."""
    made = [*_numbers(), *_pairs(seed), *_long()]
    random.Random(seed).shuffle(made)
    for name, pattern, better, per_step, lines in made:
        stated: dict[str, Any] = {"pattern": pattern, "better": better, "per_step": per_step}
        yield Case(
            f"output, {name}", {"steps.json": json.dumps(stated).encode(), "output": "\n".join(lines).encode("utf-8", "surrogatepass")}
        )


def read(case: Case, folder: Path) -> None:
    """Read the lines as they come; raises MeasurementError if the trial fails by them."""
    stated, launch = json.loads(case.files["steps.json"]), programs()["launch"]
    made = {"per_step": stated["per_step"], "ranks": 2, "now_s": 0.0, "tokens": 4096, "better": stated["better"]}
    counter = functools.partial(programs()["steps"].StepCounter, **made)
    output, lines = case.files["output"], launch.OutputLines()
    with tempfile.TemporaryDirectory() as trial:
        declared = _Steps(stated["pattern"]) if stated["pattern"] else None
        given = {"wanted": MOST_STEPS, "counter": counter, "accumulation": 1, "to_end": False, "errors": Path(trial) / "stderr.log"}
        follower = launch.Follower(_Trial(Path(trial)), declared, **given)
        try:
            for number, at in enumerate(range(0, len(output) + CHUNK, CHUNK), start=1):
                follower.read(lines.complete(output[at : at + CHUNK]), float(number))
        except ValueError as error:
            if not str(error).startswith("the program prints"):
                raise
            raise MeasurementError(str(error)) from None


def _numbers() -> Iterator[Content]:
    """Yield outputs in which one thing stands where a number is expected, in the first line or after good ones."""
    for what, (pattern, line) in {**PATTERNS, **{name: ("", line) for name, line in LINES.items()}}.items():
        for number, odd in enumerate((*ODD, *map(str, mutations.NUMBERS), *map(str, mutations.FLOATS))):
            odd = odd.encode("utf-8", "replace").decode()
            better = BETTER[number % 2] if "value" in pattern else ""
            good = [line.format(each) for each in (1, 2, 3)]
            yield f"{what} {number}", pattern, better, 1 + number % 3, [line.format(odd)] * 4
            yield f"{what} {number} after others", pattern, better, 1, [*good, line.format(odd), *good]
            yield f"{what} {number} between others", pattern, better, 1, [each for one in good for each in (one, line.format(odd))]


def _pairs(seed: int) -> Iterator[Content]:
    """Yield outputs whose numbers go up and down by small and large amounts."""
    source = random.Random(seed)
    for what, (pattern, line) in {**PATTERNS, **{name: ("", line) for name, line in LINES.items()}}.items():
        for number in range(60):
            values = [
                source.choice((0, 1, 2, 3, 4, 5, 9, 10, 100, 99_999, 10**6, 10**9, 10**15)) for _ in range(source.choice((3, 10, 60)))
            ]
            ranks = source.choice(("", "[rank{}]: ", "[default{}]:"))
            lines = [ranks.format(source.randrange(2)) + line.format(value) for value in values]
            yield f"{what} sequence {number}", pattern, BETTER[number % 2] if "value" in pattern else "", 1 + number % 2, lines


def _long() -> Iterator[Content]:
    """Yield lines without an end, and lines on which a pattern may take long."""
    texts = {
        "letters": "x" * (8 << 20),
        "digits": "9" * 100_000,
        "steps": "step 1 " * 20_000,
        "steps and digits": "step 1 " * 150 + "1" * 1_000,
        "bars": "1/1 [" * 20_000,
        "commas": "1," * 50_000,
        "points": "1." * 50_000,
        "exponents": "1e1" * 30_000,
        "empty lines": "\n" * 200_000,
        "returns": "\r" * 200_000,
        "escapes": "\x1b[" * 50_000,
        "prefixes": "[rank0]: " * 20_000,
        "spaces": "1" + " " * 100_000 + "it/s",
        "epochs": "Epoch 1: " * 10_000,
        "losses": "{'loss': '" + "1" * 50_000,
    }
    for what, text in texts.items():
        for pattern in ("", *(pattern for pattern, _ in PATTERNS.values())):
            yield f"long {what} by {pattern[:20]!r}", pattern, "higher" if "value" in pattern else "", 1, [text, text]


class _Steps:
    """Holds what the runner reads of a declaration."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.format, self.out_of_memory = pattern, "", "out of memory"


class _Trial:
    """Takes steps as `oppa_client.Trial` does, and checks what oppa would refuse."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.next_step = folder, 0
        (folder / "measurements.jsonl").touch()

    def step(self, seconds: float, *, memory_bytes: int | None, loss: float | None, averaged: bool = False) -> bool:
        assert 0 < seconds < float("inf"), f"a step takes {seconds} s"
        self.next_step += 1
        assert self.next_step <= MOST_STEPS, "steps without end"
        return True


def programs() -> dict[str, types.ModuleType]:
    """Return the modules of the runner `command`, which trials start as programs."""
    folder = catalog.root() / "runners" / "command"
    found = {}
    for name in ("steps", "launch"):
        spec = importlib.util.spec_from_file_location(f"command_{name}", folder / f"{name}.py")
        assert spec and spec.loader
        if spec.name not in sys.modules:
            sys.path[:0] = [str(folder), str(catalog.client())]
            sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[spec.name])
        found[name] = sys.modules[spec.name]
    return found
