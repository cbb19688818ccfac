"""Hostile launch lines, as they stand after `--`: each is read with a job file, and the job is used."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

from experiments.faults.case import Case
from experiments.faults.inputs import mutations

JOBS = {
    "least": b"cluster = {devices_per_host = 4, memory_limit = '1 GiB'}\nbatch = {global_batch = 8}\n",
    "with a model": b"""
model = {preset = "tiny-4m"}
batch = {global_batch = 8}
cluster = {devices_per_host = 4, device = "H100", memory_limit = "80 GiB"}
""",
    "of a framework": b"""
model = {preset = "tiny-4m"}
batch = {global_batch = 8}
cluster = {devices_per_host = 4, device = "H100", memory_limit = "80 GiB"}
space = {name = "megatron"}
""",
    "with choices": b"""
cluster = {devices_per_host = 4, memory_limit = "1 GiB"}
batch = {global_batch = 8}
objective = {pattern = "(?P<value>[0-9]+)"}
space = {parameters = {workers = [2, 4], arenas = {values = [1, 2], env = "ARENAS", short = "a"}}}
baseline = {micro_batch = 1}
""",
}
"""Job files, by what they state."""
LINE = ("python3", "train.py", "--micro-batch", "{micro_batch}", "--workers", "{workers=4:2,4,8}", "--dp={dp}")
PIECES = (
    *("{", "}", "{{", "}}", "{}", "{{}}", "{=}", "{=:}", "{a=}", "{a=:}", "{a=1}", "{a=1:}", "{a=:1,2}", "{a=1:1}", "{a=1:1,1}"),
    *("{a=1:,}", "{a=1:1,}", "{a=1:1,2}", "{{a=1:1,2}}", "{{{a=1:1,2}}}", "{{{{a=1:1,2}", "{a=1:1,2}}", "{a={b}:1,2}", "{a=1:2:3,4}"),
    *(
        "{a!r=1:1,2}",
        "{a!r}",
        "{a:>99999999}",
        "{a:9=1:1,2}",
        "{a.b=1:1,2}",
        "{a[0]=1:1,2}",
        "{0=1:1,2}",
        "{ a = 1 : 1 , 2 }",
        "{a\n=1:1,2}",
    ),
    *("{a=true:true,false}", "{a=True:True,False}", "{a=true:1,2}", "{a=1:1.0,2}", "{a=1.0:1,2}", "{a=-0.0:0,1}", "{a=007:007,7}"),
    *("{a=nan:nan,1}", "{a=inf:inf,1}", "{a=1e999:1,2}", "{a=1_0:1_0,2}", "{a=0x1:0x1,2}", "{a=²:²,٣}", "{a=9223372036854775808:1,2}"),
    *("{a=-1:-1,-2}", "{a=1e-300:1e-300,1}", "{a=$(id):`id`,x}", "{a='x':'x',\"y\"}", "{a=..:../..,/}", "{a= : ,x}", "{a=x y:x y,z}"),
    *(
        "{dp=4:4}",
        "{dp=2:2,4}",
        "{dp=3:3,4}",
        "{tp=1:1,2}{dp}",
        "{pp=1:1,99}",
        "{micro_batch=1:1,2}",
        "{global_batch=8:8,16}",
        "{zero_stage=0:0,9}",
    ),
    *(
        "{schedule=1f1b:1f1b,gpipe}",
        "{schedule=x/y:x/y,..}",
        "{devices=4:4,8}",
        "{steps=1:1,2}",
        "{folder=a:a,b}",
        "{knobs=1:1,2}",
        "{if=1:1,2}",
    ),
    *(
        "{__class__=1:1,2}",
        "{a=1:1,2}{a=2:1,2}",
        "{a=1:1,2}{a}",
        "{b}",
        "{layers}",
        "{layers=1:1,2}",
        "{arenas=1:1,2}",
        "{arenas}",
        "{workers}",
    ),
    *(
        "{recompute=none:none,full}",
        "{num_workers=1:1,2}",
        "{cp}",
        "{cp=1:1,2}",
        "{fp8}",
        "{num_microbatches}",
        "{tokens_per_step}",
        "{precision}",
    ),
)
"""Texts that stand in a word."""


def cases(seed: int) -> Iterator[Case]:
    """Yield every case once, in an order that the seed decides."""
    made = [*_pieces(), *_long(), *_damaged(seed)]
    random.Random(seed).shuffle(made)
    for number, (name, words) in enumerate(made):
        job, body = list(JOBS.items())[number % len(JOBS)]
        yield Case(f"launch line, {name}, {job}", {"job.toml": body, "words.json": json.dumps(words).encode()})


def read(case: Case, folder: Path) -> None:
    """Read the launch line, and use the job; raises OppaError if it is refused."""
    from experiments.faults.inputs.use import use
    from oppa.problem.job import load_job

    case.write(folder)
    use(load_job(folder / "job.toml", argv=json.loads(case.files["words.json"])), folder)


def _pieces() -> Iterator[tuple[str, list[str]]]:
    """Yield lines with one odd word, or with an odd name, present value or choice."""
    odd = [*map(str, mutations.NUMBERS), *map(str, mutations.FLOATS), *mutations.TEXTS]
    templates = (
        "{{{}=1:1,2}}",
        "{{a={}:1,2}}",
        "{{a=1:{},2}}",
        "{{a={0}:{0},2}}",
        "{{a=x:x,{}}}",
        "{{{}}}",
        "{{micro_batch={}:1,2}}",
        "{}",
    )
    words = [*PIECES, *(template.replace("{}", each).replace("{0}", each) for template in templates for each in odd)]
    for number, word in enumerate(words):
        braces = word.replace("{{", "{").replace("}}", "}") if number >= len(PIECES) else word
        for what, line in (("alone", [*LINE[:2], braces]), ("further", [*LINE, braces]), ("inside", [*LINE[:4], f"--x={braces}-y"])):
            yield f"word {number} {what}", line
    yield from (("nothing", []), ("empty", [""]), ("only choices", ["{a=1:1,2}"]), ("twice", [*LINE, *LINE]))


def _long() -> Iterator[tuple[str, list[str]]]:
    for count in (10, 1_000, 4_096, 4_097, 100_000):
        yield f"{count} choices", [*LINE, "{a=0:" + ",".join(map(str, range(count))) + "}"]
        yield f"{count} texts", [*LINE, "{a=v0:" + ",".join(f"v{number}" for number in range(count)) + "}"]
        yield f"{count} words", [*LINE, *["x"] * count]
        yield f"{count} knobs", [*LINE, *(f"{{a{number}=0:0,1}}" for number in range(min(count, 5_000)))]
        yield f"{count} braces", [*LINE, "{" * count + "a=1:1,2" + "}" * count]
        yield f"{count} pairs of braces", [*LINE, "{{" * count + "{a=1:1,2}"]
        yield f"{count} beginnings", [*LINE, "{a=" * count]
        yield f"{count} signs", [*LINE, "{a" + "=" * count + "}"]
        yield f"{count} of a name", [*LINE, "{" + "a" * count + "=1:1,2}"]
        yield f"{count} of a value", [*LINE, "{a=x:x," + "y" * count + "}"]
    for length in (20, 60, 100):
        yield f"names of {length}", [*LINE, *(f"{{{'n' * (length - 1)}{number}=1:1,2}}" for number in range(8))]


def _damaged(seed: int) -> Iterator[tuple[str, list[str]]]:
    source, text = random.Random(seed), "\0".join((*LINE, "{a=x:x,y}", "{b=0.5:0.5,1}"))
    for number in range(800):
        at, length = source.randrange(len(text)), source.choice((0, 1, 1, 5))
        other = source.choice("{}=:,!.[]$'\" \n\\\x1b0x") * source.choice((1, 1, 2, 300))
        yield f"damaged {number}", (text[:at] + other + text[at + length :]).split("\0")
