"""Hostile files of frameworks: each is imported as `oppa import FOLDER --out out.toml` does, and what is written is read again."""

import contextlib
import functools
import io
import json
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from experiments.faults.case import Case
from experiments.faults.inputs import mutations
from experiments.faults.inputs.understood_lines import ACCELERATE

SAMPLE = 1_200
"""Number of cases of each kind that a seed yields, of several thousand."""
FORMATS = {
    "accelerate.yaml": "accelerate",
    "ds_config.json": "deepspeed",
    "megatron_args.sh": "megatron",
    "plugin.py": "colossalai",
    "pretrain.py": "megatron-bridge",
    "oppa_recipe.py": "torchtitan",
    "trial.json": "torchrun",
    "training_arguments.json": "transformers",
    "lightning.yaml": "lightning",
}
"""The format of each file."""
JOB = b"""
model = {preset = "tiny-4m"}
batch = {global_batch = 64}
cluster = {devices_per_host = 8, device = "H100", memory_limit = "80 GiB"}
runner = {name = "torch"}
training = {precision = "bf16"}
"""
FOR_MEGATRON = JOB.replace(b'"torch"', b'"simulated"') + b'space = {name = "megatron"}\n'
SCRIPT = """\
#!/bin/bash
GPUS=8; TP=2
PP_SIZE=${PP_SIZE:-2}
MODEL=(--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50304)
TRAIN="--micro-batch-size 4 --global-batch-size 64 --use-distributed-optimizer --overlap-grad-reduce --ddp-bucket-size 40000000"
torchrun --nproc_per_node $GPUS --nnodes 1 pretrain_gpt.py ${MODEL[@]} $TRAIN --tensor-model-parallel-size $TP \\
    --pipeline-model-parallel-size ${PP_SIZE} --num-layers-per-virtual-pipeline-stage 2 --recompute-granularity full --bf16 --swiglu
"""
LAYOUT = SCRIPT.replace("--num-layers-per-virtual-pipeline-stage 2", "--pipeline-model-parallel-layout Et*6|t*6L")
SHELL = {
    "doublings": "A0=xxxxxxxx\n" + "".join(f"A{number + 1}=$A{number}$A{number}\n" for number in range(60)) + "x --num-layers $A60\n",
    "many uses": "A=" + "x" * 100_000 + "\nx " + "$A " * 30_000 + "\n",
    "itself": "A=$A$A\n" * 5_000 + "x --num-layers $A\n",
    "defaults": "x --num-layers " + "${A:-" * 20_000 + "1" + "}" * 20_000 + "\n",
    "open defaults": "x --num-layers " + "${A:-" * 20_000 + "\n",
    "options": "x " + "".join(f"--option-{number} {number} " for number in range(10_000)) + "\n",
    "one option": "x --num-layers " + "9 " * 20_000 + "\n",
    "one word": "x --num-layers=" + "9" * 50_000 + "\n",
    "quotes": "x '" * 10_001,
    "switches": "x " + "--parallel" * 2_000 + "\n",
    "separators": ";&|" * 20_000,
}
"""Scripts that grow, or are long."""
YAML = {
    "laughs": "a: &a [x, x]\n"
    + "".join(f"{c}: &{c} [*{p}, *{p}, *{p}, *{p}]\n" for p, c in zip("abcdefghijklmnop", "bcdefghijklmnopq", strict=True)),
    "merges": "a: &a {x: 1}\n"
    + "".join(f"{c}: &{c}\n  <<: [*{p}, *{p}, *{p}]\n" for p, c in zip("abcdefghijklmnop", "bcdefghijklmnopq", strict=True)),
    "itself": "&a {fsdp_config: *a}\n",
    "a tag": "!!python/object/apply:os.system [id]\n",
    "documents": "a: 1\n---\nb: 2\n",
    "a list": "- 1\n",
    "keys": "? [a]\n: 1\n? {b: 1}\n: 2\n",
    "dates": "num_machines: 2001-13-45\nnum_processes: 2001-01-01\n2001-01-01: 1\n",
    "numbers": "num_machines: .inf\nnum_processes: .nan\nmixed_precision: 190:20:30\n1: 2\nnull: 3\n1.5: 4\ntrue: 5\n",
    "binary": "mixed_precision: !!binary aGVsbG8=\nfsdp_config: !!set {a, b}\ndeepspeed_config: !!omap [a: 1]\n",
    "a surrogate": 'mixed_precision: "\\ud800"\ndistributed_type: "\\udfff"\n',
    "sixties": "num_machines: 1" + ":00" * 20_000 + "\n",
    "blocks": "".join(" " * depth + "a:\n" for depth in range(600)),
}


def cases(seed: int) -> Iterator[Case]:
    """Yield cases in an order that the seed decides: all that are written by hand, and a sample of those with one other value."""
    source = random.Random(seed)
    made = [*_damaged(seed), *_written()]
    for kind in (_structured(), _python(), _shell()):
        made += source.sample(list(kind), SAMPLE)
    source.shuffle(made)
    yield from made


def read(case: Case, folder: Path) -> None:
    """Import the files into a job, and read the job; raises OppaError if they are refused."""
    from oppa import api
    from oppa.cli.commands.import_ import import_

    case.write(folder)
    origin = next(origin for name, origin in FORMATS.items() if name in case.files)
    job, out = (folder / "job.toml" if "job.toml" in case.files else None), folder / "out.toml"
    with contextlib.redirect_stderr(io.StringIO()):
        import_(folder, origin, job=job, take="file", out=out)
    api.load_job(out)
    out.unlink()


def exported(origin: str, name: str) -> str:
    """Return the text of a file that a format writes."""
    return _exported()[origin][name]


@functools.cache
def _exported() -> Mapping[str, Mapping[str, str]]:
    """Return the files that each format writes for one configuration."""
    import tempfile

    from oppa import api
    from oppa.problem.configuration import Configuration
    from oppa.tuning.formats import exports

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.toml"
        path.write_bytes(JOB)
        problem = api.load_job(path)
    made = exports(problem, Configuration(dp=8, global_batch=64, micro_batch=2))
    return {name: files for name, files in made.items() if isinstance(files, Mapping)}


def _structured() -> Iterator[Case]:
    """Yield JSON and YAML with one value of another kind; all JSON is YAML."""
    deepspeed = json.loads(exported("deepspeed", "ds_config.json"))
    tables = {
        "ds_config.json": {**deepspeed, "tensor_parallel": {"autotp_size": 2}, "pipeline": {"stages": 1}, "gradient_clipping": 1.0},
        "training_arguments.json": {
            **json.loads(exported("transformers", "training_arguments.json")),
            "fsdp": "shard_grad_op",
            "fsdp_config": {"reshard_after_forward": False},
            "gradient_checkpointing": True,
            "ddp_bucket_cap_mb": 100,
            "deepspeed": None,
        },
        "lightning.yaml": {
            "trainer": {
                "devices": 8,
                "num_nodes": 1,
                "accumulate_grad_batches": 4,
                "strategy": {"class_path": "FSDPStrategy", "init_args": {"sharding_strategy": "SHARD_GRAD_OP"}},
            },
            "data": {"batch_size": 2},
        },
        "trial.json": {"configuration": json.loads(exported("torchrun", "trial.json"))["configuration"]},
        "accelerate.yaml": {
            **ACCELERATE,
            "parallelism_config": {**ACCELERATE["parallelism_config"], "parallelism_config_dp_shard_size": 4},
        },
    }
    for name, valid in tables.items():
        for what, changed in mutations.mutated(valid, (float("nan"), float("inf"), "\ud800", [["a"] * 100] * 100)):
            yield _case(f"{name}: {what}", {name: json.dumps(changed)})
    inside = {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"zero_stage": 2, "gradient_accumulation_steps": 4, "deepspeed_config_file": ""},
    }
    for what, changed in mutations.mutated(inside, ()):
        yield _case(f"accelerate with DeepSpeed: {what}", {"accelerate.yaml": json.dumps(changed)})


def _python() -> Iterator[Case]:
    """Yield Python sources with one value of another kind."""
    texts = {"plugin.py": "colossalai", "pretrain.py": "megatron-bridge", "oppa_recipe.py": "torchtitan"}
    others = (
        "1e999",
        "-1",
        "None",
        "...",
        "f()",
        "{[]: 1}",
        "{(1, 2): 3}",
        "{1, 2}",
        "b'x'",
        "1j",
        "'\\ud800'",
        "0x" + "f" * 9_000,
        "9" * 5_000,
    )
    for name, origin in texts.items():
        text = exported(origin, name)
        for number, place in enumerate(re.finditer(r"(?<=[a-z_0-9A-Z]=)[^=\n]+(?=,\n)|(?<=[a-z_0-9A-Z] = )[^=\n]+(?=\n)", text)):
            for index, value in enumerate((*(repr(value) for value in mutations.values()), *others)):
                yield _case(f"{name}: value {index} at {number}", {name: text[: place.start()] + value + text[place.end() :]})
        for opening, closing in (
            ("(", ")"),
            ("[", "]"),
            ("-", ""),
            ("not ", ""),
            ("f(", ")"),
            ("{1: ", "}"),
            ("a.", "a"),
            ("1 + ", "1"),
            ("lambda: ", "1"),
        ):
            for what, nested in mutations.deep(opening, closing):
                yield _case(f"{name}: {opening} {what}", {name: f"{text}\nconfig.model.x = {nested}\n"})


def _shell() -> Iterator[Case]:
    """Yield scripts with one word replaced, and scripts that grow."""
    words = [
        str(value)
        for value in (*mutations.NUMBERS, *mutations.FLOATS, *mutations.TEXTS, "$", "${", "${A", "$A", "${A:-2}", "$(cat x)", "'", '"')
    ]
    for name, script in (("script", SCRIPT), ("layout", LAYOUT)):
        for number, place in enumerate(re.finditer(r"(?<=[ =(\n])[\w${}:.-]+", script)):
            for index, word in enumerate(words):
                yield _case(
                    f"{name}: word {index} at {number}", {"megatron_args.sh": script[: place.start()] + word + script[place.end() :]}
                )


def _damaged(seed: int) -> Iterator[Case]:
    for name, origin in FORMATS.items():
        text = SCRIPT if origin == "megatron" else exported(origin, name)
        for what, body in mutations.damaged(text.encode(), seed, 100):
            yield _case(f"{name}: {what}", {name: body})


def _written() -> Iterator[Case]:
    """Yield files written by hand for one reader."""
    for what, text in SHELL.items():
        yield _case(f"script: {what}", {"megatron_args.sh": text + SCRIPT})
    for what, text in YAML.items():
        yield _case(f"YAML: {what}", {"accelerate.yaml": f"distributed_type: FSDP\n{text}"})
    for opening, closing in (("[", "]"), ('{"a": ', "}")):
        for what, nested in mutations.deep(opening, closing):
            for name in ("ds_config.json", "trial.json", "accelerate.yaml", "training_arguments.json", "lightning.yaml"):
                yield _case(f"{name}: {opening} {what}", {name: f'{{"zero_optimization": {nested}, "configuration": {nested}}}'})
    yield _case(
        "YAML of a run script",
        {"accelerate.yaml": "distributed_type: NO\n", "run.sh": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=" + "9" * 5_000},
    )
    yield _case("no steps", {"accelerate.yaml": "distributed_type: NO\n", "run.sh": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=0"})
    for what, job in (
        ("numbers", b"model = 5\nbatch = 5\nrunner = 5\nspace = 5\n"),
        ("nothing", b""),
        ("a command", JOB + b"\n[command]\nargv = ['x']\n"),
    ):
        for name, origin in FORMATS.items():
            text = SCRIPT if origin == "megatron" else exported(origin, name)
            yield Case(f"import, {name} into a job of {what}", {name: text.encode(), "job.toml": job})


def _case(name: str, files: Mapping[str, str | bytes]) -> Case:
    """Return a case with a job, which the framework's file is imported into; without one where the format makes a job."""
    bodies = {file: text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass") for file, text in files.items()}
    if any(file in ("megatron_args.sh", "accelerate.yaml") for file in files) and not name.endswith(("3", "7")):
        return Case(f"import, {name}", bodies)
    return Case(f"import, {name}", {**bodies, "job.toml": FOR_MEGATRON if "pretrain.py" in files else JOB})
