"""Hostile search spaces: each is read for the facts of a job, and its configurations are enumerated."""

import random
from collections.abc import Iterator
from typing import Any

from experiments.faults.case import Case
from experiments.faults.inputs import job_files, mutations
from experiments.faults.inputs.mutations import Raw, Text

JOB = b"""
model = {preset = "tiny-4m"}
batch = {global_batch = 8}
cluster = {hosts = 2, devices_per_host = 4, device = "H100", memory_limit = "80 GiB"}
runner = {name = "simulated"}
space = {name = "./space.toml"}
"""
COMMAND = b"""
model = {preset = "tiny-4m"}
batch = {global_batch = 8}
cluster = {hosts = 2, devices_per_host = 4, device = "H100", memory_limit = "80 GiB"}
command = {argv = ["python3", "train.py"]}
space = {name = "./space.toml", parameters = {cp = [1, 2], rate = [0.5, 1.0], micro_batch = 1}}
"""
"""A job whose plain launch line gets the words of all parameters, some of which it asks for."""
SPACE: dict[str, Any] = {
    "description": "a space",
    "balanced_stages": False,
    "parameters": {
        "dp": {"divisors": "devices"},
        "tp": {"divisors": "devices"},
        "pp": {"values": [1, 2], "default": 1},
        "micro_batch": {"divisors": "global_batch"},
        "zero_stage": {"values": [0, 1, 3], "when": "dp > 1"},
        "schedule": {"values": ["1f1b", "gpipe"], "open": ["zb-h1"], "when": "pp > 1"},
        "dp_bucket_mb": {"low": 1, "high": 64, "factor": 4, "default": 25, "when": "zero_stage == 0 and dp > 1"},
        "overlap_p2p": {"values": [False, True], "when": "pp > 1"},
        "cp": {"values": [1, 2], "degree": True, "short": "c", "words": "--cp {cp}", "on_request": True},
        "algorithm": {"values": ["Ring", "Tree"], "env": "NCCL_ALGO", "default": "Tree", "scale": "one-hot", "open": True},
        "fused": {"values": [False, True], "words": {"true": ["--fused"], "*": []}, "when": "tp > 1", "changes": "speed"},
        "rate": {"values": [0.5, 1.0], "words": ["--rate", "{rate}", "--of={dp}"], "scale": "log2", "changes": "learning"},
        "buffers": {"low": 1, "high": 8, "env": "BUFFERS", "scale": "ordinal"},
    },
}
CONSTRAINT = {"expression": "layers % pp == 0", "why": "stages are equal"}
EXPRESSIONS = (
    *(
        "dp * 9223372036854775807 > 0",
        "dp * 4611686018427387904 * 2 > 0",
        "-dp * 9223372036854775807 - 2 < 0",
        "dp + 9223372036854775807 > 0",
    ),
    *(
        "hidden * " * 30 + "dp > 0",
        "dp - 9223372036854775807 - 2 < 0",
        "dp // (tp - 1) == 0",
        "dp % (pp - 1) == 0",
        "dp // 0 == 1",
        "1 % 0 == 0",
    ),
    *(
        "dp_bucket_mb * " + "9" * 250 + " > 0",
        "dp_bucket_mb * dp_bucket_mb > 1",
        "dp % dp_bucket_mb == 0",
        "dp == 9" + "9" * 250,
        "dp in [1, 2, 3]",
    ),
    *(
        "dp ** 999999999 == 1",
        "dp << 999999999 == 1",
        "dp > 1e308",
        "schedule == schedule",
        "schedule < 'x'",
        "schedule in []",
        "not " * 70 + "dp",
    ),
    *(
        "(" * 140 + "dp" + ")" * 140 + " > 0",
        "-" * 280 + "dp > 0",
        "dp > 0 and " * 25 + "dp > 0",
        "dp" + " + dp" * 58 + " > 0",
        "dp > 0" * 200,
    ),
    *(
        "num_microbatches % pp == 0",
        "num_microbatches * 9223372036854775807 >= 1",
        "dp == '1'",
        "overlap_p2p == (pp > 1)",
        "devices == dp",
        "\\",
    ),
    *(
        "dp.real == 1",
        "dp[0] == 1",
        "dp if dp else tp",
        "f'{dp}' == ''",
        "dp == 0x" + "f" * 200,
        "dp == 1_0",
        "ｄｐ == 1",
        "dp == 1 # comment",
        "'\\N{BEL}' == schedule",
    ),
)


read = job_files.read
"""Reads a job with a search space of its own, and uses the job."""


def cases(seed: int) -> Iterator[Case]:
    """Yield every case once, in an order that the seed decides."""
    made = [*_mutated(), *_damaged(seed), *_expressions(), *_large(), *_extending()]
    random.Random(seed).shuffle(made)
    for number, (name, text) in enumerate(made):
        yield Case(f"search space, {name}", {"job.toml": COMMAND if number % 2 else JOB, "space.toml": mutations.toml_file(text)})


def _mutated() -> Iterator[Text]:
    extra = (*job_files.RAW, *(Raw(text) for _, text in mutations.deep("[", "]")))
    tables = {**SPACE, "constraint": [CONSTRAINT]}
    for what, changed in mutations.mutated(tables, extra):
        yield what, changed
    for what, changed in mutations.mutated(CONSTRAINT, extra):
        yield f"constraint {what}", {**SPACE, "constraint": [changed]}


def _damaged(seed: int) -> Iterator[Text]:
    headers = [f"[parameters.{name}]\n{mutations.toml_file(entry).decode()}" for name, entry in SPACE["parameters"].items()]
    text = "\n".join([*headers, f"[[constraint]]\n{mutations.toml_file(CONSTRAINT).decode()}"])
    yield from mutations.damaged(text.encode(), seed, 400)


def _expressions() -> Iterator[Text]:
    for number, expression in enumerate(EXPRESSIONS):
        changed = {**SPACE, "constraint": [{"expression": expression, "why": "x"}]}
        yield f"constraint {number}", changed
        for name, key in (("zero_stage", "when"), ("tp", "divisors")):
            yield f"{name}.{key} {number}", mutations.replaced(SPACE, ("parameters", name, key), expression)
    many = [{"expression": f"dp != {number}", "why": "x"} for number in range(3_000)]
    for count in (100, 101, 3_000):
        yield f"{count} constraints", {**SPACE, "constraint": many[:count]}


def _large() -> Iterator[Text]:
    """Yield spaces whose values are many, or whose values have many combinations."""
    wide = {name: {"values": list(range(1, 4_000))} for name in ("dp", "tp", "pp", "ep", "micro_batch", "model_chunks", "dp_bucket_mb")}
    yield "wide", {"parameters": wide}
    for count in (10, 300, 4_096, 4_097, 30_000):
        values = {"values": list(range(1, count))}
        for name in ("dp", "micro_batch", "dp_bucket_mb"):
            yield f"{count} of {name}", mutations.replaced(SPACE, ("parameters", name), values)
        texts = {"values": [f"schedule {number}" for number in range(count)]}
        yield f"{count} schedules", mutations.replaced(SPACE, ("parameters", "schedule"), texts)
    for low, high in ((1, 2**63 - 1), (2**62, 2**63 - 1), (1, 10**18), (10, 1), (0, 4)):
        entry = {"low": low, "high": high, "factor": 2}
        yield f"{low} to {high}", mutations.replaced(SPACE, ("parameters", "dp_bucket_mb"), entry)


def _extending() -> Iterator[Text]:
    for name in ("torch", "torhc", "./space.toml", "../space.toml", "/dev/zero", "/dev/tty", "/", "\0", "a/" * 400):
        yield f"extends {name[:20]!r}", {"extends": name, **SPACE}
