"""Hostile job files: each is read, and if it is accepted, its search is planned as `oppa tune --dry-run` does."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.faults.case import Case
from experiments.faults.inputs import mutations
from experiments.faults.inputs.mutations import Raw, Text

JOB: dict[str, Any] = {
    "name": "job",
    "model": {"preset": "tiny-4m", "layers": 8, "hidden": 192, "heads": 4, "kv_heads": 4, "ffn": 608, "vocab": 256, "seq_len": 64}
    | {"experts": 1, "gated": True, "tied": False, "norm": "rms", "causal": True, "patch": 0},
    "batch": {"global_batch": 8},
    "cluster": {"hosts": 1, "devices_per_host": 4, "device": "H100", "memory_limit": "80 GiB"}
    | {"intra_host": {"bandwidth": "300 GB/s", "latency": "3 us"}, "inter_host": {"bandwidth": "25 GB/s", "latency": "5 us"}},
    "runner": {"name": "simulated"},
    "space": {"name": "torch", "parameters": {"dp": [1, 2, 4], "micro_batch": 1, "schedule": ["1f1b"], "stage_layout": "even"}},
    "training": {"precision": "bf16", "optimizer": "adamw", "learning_rate": 3e-4, "adam_beta2": 0.95, "gradient_clipping": 1.0, "seed": 1}
    | {"collective_timeout": "60 s", "reduce_in_rank_order": True, "corpus": ""},
    "limits": {"trials": 9, "wall_time": "9 min", "trial_time": "60 s", "q_min": 5, "q_max": 12, "repeats": 3, "grace": "1 s"},
    "train": {"samples": 96, "warmup": 16, "decay": "cosine", "final_share": 0.1, "reference_batch": 8, "scaling": "sqrt", "damping": 10}
    | {"statistics": "workers", "statistics_every": 1, "profile_steps": 3, "workers_every": 2, "validation": 8, "validate_every": 8}
    | {"checkpoint_every": "9 s", "keep": 2},
    "launcher": {"name": "local", "options": {"comment": "x"}, "parallel": 1},
    "designer": {"stopping": "sure", "acquisition": "improvement"},
    "baseline": {"dp": 4, "micro_batch": 1},
}
"""A job with a value for nearly every key."""
OWN: dict[str, Any] = {
    "model": {"preset": "tiny-4m"},
    "batch": {"global_batch": 8},
    "cluster": {"devices_per_host": 4, "memory_limit": "1 GiB", "cpus_per_device": [0.5, 0.5, 0.25, 0.25]},
    "command": {
        "argv": ["python3", "train.py", "--tp", "{tp}"],
        "arguments": {"pp": ["--pp", "{pp}"], "recompute": {"none": [], "full": ["-r"]}},
    }
    | {"files": {"config": {"path": "config.json", "keys": {"a.b": "{micro_batch}", "zero": {"zero_stage": {"0": False, "1": True}}}}}}
    | {"steps": {"pattern": "step (?P<step>[0-9]+)", "out_of_memory": "no memory", "batches_per_step": 1}},
    "space": {"parameters": {"recompute": ["none", "full"], "zero_stage": [0, 1]}},
}
"""A job with a launch line of its own."""
PROGRAM: dict[str, Any] = {
    "cluster": {"devices_per_host": 4, "memory_limit": "1 GiB"},
    "batch": {"global_batch": 8},
    "objective": {"pattern": "latency (?P<value>[0-9.]+)", "unit": "ms", "better": "lower"},
    "command": {
        "argv": ["python3", "train.py", "{num_workers=4:2,4,8}", "--micro", "{micro_batch}", "--cp", "{cp}", "--lr={my_rate}"],
        "arguments": {"prefetch": {"none": [], "*": ["--prefetch", "{prefetch}"]}},
        "files": {"config": {"path": "config.json", "keys": {"a.b": "{prefetch}", "c": {"fused": {"true": 1, "false": 0}}}}},
    },
    "space": {
        "parameters": {
            "micro_batch": [1, 2],
            "prefetch": ["none", "one"],
            "my_rate": [0.5, 1.0],
            "cp": {"values": [1, 2], "degree": True, "short": "c", "default": 1, "scale": "ordinal"},
            "arenas": {"low": 1, "high": 8, "factor": 2, "env": "MALLOC_ARENA_MAX", "when": "dp > 1", "open": [16]},
            "shards": {"divisors": "global_batch", "words": "--shards {shards}", "scale": "log2"},
            "fused": {"values": [False, True], "words": {"true": "--fused", "*": []}, "on_request": True, "changes": "learning"},
        }
    },
    "baseline": {"num_workers": 2, "micro_batch": 1, "cp": 2},
}
"""A program without a model, with knobs of every kind and an objective."""
JOBS = {"job": JOB, "own": OWN, "program": PROGRAM}
RAW = tuple(
    map(Raw, ["inf", "-inf", "nan", "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "2001-02-30", "0x" + "f" * 9_000, "9" * 5_000])
)
"""Values that JSON lacks."""
LARGE: tuple[dict[str, dict[str, Any]], ...] = (
    *({"model": {"layers": layers}, "cluster": {"devices_per_host": devices}} for layers in (512, 1_024) for devices in (64, 720)),
    *({"batch": {"global_batch": batch}} for batch in (2**24, 14_414_400, 16_777_213)),
    *({"cluster": {"hosts": hosts, "devices_per_host": devices}} for hosts, devices in ((65_536, 1_024), (65_520, 720), (55_440, 840))),
    {
        "batch": {"global_batch": 14_414_400},
        "cluster": {"hosts": 55_440, "devices_per_host": 840},
        "model": {"layers": 1_008, "experts": 720_720},
    },
    {"model": {"vocab": 2**31 - 1, "hidden": 2**30, "heads": 2**20, "kv_heads": 2**20, "ffn": 2**31 - 1, "seq_len": 2**31 - 1}},
    {"designer": {"transfer": "nowhere"}},
    {"limits": {"q_max": 1_000_000, "q_min": 1_000_000, "trials": 2**31 - 1, "repeats": 1_000}},
)
"""Numbers that are within their bounds, several at once."""


def cases(seed: int) -> Iterator[Case]:
    """Yield every case once, in an order that the seed decides."""
    made = [*_mutated(), *_damaged(seed), *_nested(), *_large()]
    random.Random(seed).shuffle(made)
    for name, text in made:
        yield Case(f"job file, {name}", {"job.toml": mutations.toml_file(text), "config.json": b"{}"})


def read(case: Case, folder: Path) -> None:
    """Read a job file, and use the job; raises OppaError if it is refused."""
    from experiments.faults.inputs.use import use
    from oppa import api

    case.write(folder)
    use(api.load_job(folder / "job.toml"), folder)


def _mutated() -> Iterator[Text]:
    extra = (*RAW, *(Raw(text) for _, text in mutations.deep("[", "]")), *(Raw(text) for _, text in mutations.deep("{a = ", "}")))
    for name, tables in JOBS.items():
        for what, changed in mutations.mutated(tables, extra):
            yield f"{name}: {what}", changed


def _damaged(seed: int) -> Iterator[Text]:
    for name, tables in JOBS.items():
        for what, body in mutations.damaged(_lines(tables), seed, 300):
            yield f"{name}: {what}", body


def _nested() -> Iterator[Text]:
    body = mutations.toml_file(JOB)
    for opening, closing in (("a.", "a"), ('"a".', "a"), ("a . ", "a")):
        for name, text in mutations.deep(opening, "", closing):
            yield f"keys {name}", body + f"{text} = 1\n".encode()
            yield f"headers {name}", body + f"[{text}]\n".encode()
    yield "many keys", body + "".join(f"a{number} = 1\n" for number in range(20_000)).encode()
    yield "many headers", body + "".join(f"[[a.b{number}]]\n" for number in range(15_000)).encode()


def _large() -> Iterator[Text]:
    for number, changes in enumerate(LARGE):
        tables = {**JOB, "space": {"name": "torch"}}
        del tables["baseline"]
        for name, table in changes.items():
            tables[name] = {**tables[name], **table}
        for space in ("torch", "megatron", "colossalai", "command"):
            yield f"large {number} in {space}", {**tables, "space": {"name": space}}


def _lines(tables: dict[str, Any]) -> bytes:
    """Return the text of a job file as people write it, a line for each key."""
    alone = {key: value for key, value in tables.items() if not isinstance(value, dict)}
    blocks = [f"[{name}]\n{mutations.toml_file(table).decode()}" for name, table in tables.items() if isinstance(table, dict)]
    return mutations.toml_file(alone) + "\n".join(blocks).encode()
