"""Hostile launch lines without a job file, and hostile files that they name: each is understood as `oppa tune -- LINE` does.

Each valid line is of a framework, with the files that it names. A case has another word in the line, or another value in a file.
"""

import contextlib
import json
import random
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.faults.case import Case
from experiments.faults.inputs import mutations

WORDS, SAMPLE = "words.json", 300
"""File with the words of a line, and the number of cases that a seed yields of each line, and of its files."""
FLAGS = "--per_device_train_batch_size 4 --output_dir out"
HUGGING_FACE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
ACCELERATE: dict[str, Any] = {
    "distributed_type": "FSDP",
    "num_machines": 1,
    "num_processes": 8,
    "mixed_precision": "bf16",
    "use_cpu": False,
    "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": True, "fsdp_activation_checkpointing": False},
    "parallelism_config": {"parallelism_config_tp_size": 2},
}
DEEPSPEED: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 5e8},
    "bf16": {"enabled": True},
}
LIGHTNING: dict[str, Any] = {
    "trainer": {
        "devices": 8,
        "num_nodes": 1,
        "accumulate_grad_batches": 4,
        "precision": "bf16-mixed",
        "strategy": {"class_path": "FSDPStrategy", "init_args": {"sharding_strategy": "SHARD_GRAD_OP"}},
    },
    "data": {"batch_size": 2, "num_workers": 2},
}
TORCHTITAN = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
global_batch_size = 64
seq_len = 2048
[parallelism]
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "selective"
[job]
dump_folder = "out"
"""
RUN_TRAIN = """\
#!/usr/bin/bash
set -ex
NGPU=${NGPU:-"8"}
CONFIG_FILE=${CONFIG_FILE:-"./run.toml"}
PYTORCH_ALLOC_CONF="expandable_segments:True" \\
torchrun --nproc_per_node=${NGPU} --rdzv_backend c10d -m torchtitan.train --job.config_file ${CONFIG_FILE} "$@"
"""
PRETRAIN = """\
#!/bin/bash
GPUS=8; TP=2
if [ -f env.sh ]; then source env.sh; fi
MODEL=(--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50304)
torchrun --nproc_per_node $GPUS pretrain_gpt.py ${MODEL[@]} --micro-batch-size 4 --global-batch-size 64 \\
    --tensor-model-parallel-size $TP --bf16 --save out --load out
"""
BATCH_JOB = f"""\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=1
srun torchrun --nproc-per-node 8 --nnodes $SLURM_NNODES train.py {FLAGS}
"""
TRAINER = "from transformers import Trainer, TrainingArguments, HfArgumentParser\n"
CLI = "from lightning.pytorch.cli import LightningCLI\n"
LINES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Trainer": (
        f"torchrun --nproc-per-node 8 train.py {FLAGS} --bf16 true --model_name_or_path config.json --max_seq_length 64",
        {"train.py": TRAINER, "config.json": HUGGING_FACE},
    ),
    "FSDP": (
        f"torchrun --nproc-per-node 8 train.py {FLAGS} --fsdp full_shard --fsdp_config fsdp.json",
        {"train.py": TRAINER, "fsdp.json": {"reshard_after_forward": False, "fsdp_offload": True}},
    ),
    "DeepSpeed": (f"torchrun --nproc-per-node 8 train.py --deepspeed ds.json {FLAGS}", {"train.py": TRAINER, "ds.json": DEEPSPEED}),
    "Accelerate": (f"accelerate launch --config_file fsdp.yaml train.py {FLAGS}", {"train.py": TRAINER, "fsdp.yaml": ACCELERATE}),
    "Lightning": ("python train.py fit --config run.yaml", {"train.py": CLI, "run.yaml": LIGHTNING}),
    "torchtitan": ("bash run_train.sh --training.local_batch_size 4", {"run_train.sh": RUN_TRAIN, "run.toml": TORCHTITAN}),
    "Megatron-LM": ("bash pretrain.sh", {"pretrain.sh": PRETRAIN, "pretrain_gpt.py": "from megatron.training import pretrain\n"}),
    "Slurm": ("sbatch job.sbatch", {"job.sbatch": BATCH_JOB, "train.py": TRAINER}),
}
"""Valid lines with their files, by what starts them."""
ODD = (
    *(*map(str, mutations.NUMBERS), *map(str, mutations.FLOATS), *mutations.TEXTS, "a" * 300, f"x/{'a' * 300}", "--", "-", "--=", "--x="),
    *("$HOME", "$(touch PWNED)", "`touch PWNED`", "'", "@x", "[1,2", "{a", "=", "a=b", "+x=1", "8,8", "1:99999999", "\n"),
)
"""Words that stand in place of another."""


def cases(seed: int) -> Iterator[Case]:
    """Yield a sample of the cases of each line, in an order that the seed decides."""
    source, made = random.Random(seed), list[Case]()
    for name, (line, files) in LINES.items():
        for kind in (_other_words(name, line, files), _other_files(name, line, files, seed)):
            found = list(kind)
            made += source.sample(found, min(SAMPLE, len(found)))
    source.shuffle(made)
    yield from made


def read(case: Case, folder: Path) -> None:
    """Understand a line in the folder of its files, and write what a winner would change; raises OppaError if it is refused."""
    from oppa import api
    from oppa.cli.views.launch_line_view import understood_json
    from oppa.tuning.launch_line.changed_line import changed_line
    from oppa.tuning.launch_line.winner_files import write_files

    case.write(folder)
    with contextlib.chdir(folder):
        job = api.load_line(json.loads(case.files[WORDS]))
        assert not (folder / "PWNED").exists(), "a word of the line was run"
        candidates = job.problem.candidates()
        best = candidates.configuration(len(candidates) - 1)
        json.dumps([understood_json(job), changed_line(job, best).to_dict()])
        (folder / "best").mkdir()
        write_files(job, best, folder / "best")


def _other_words(name: str, line: str, files: Mapping[str, Any]) -> Iterator[Case]:
    """Yield lines in which a word is missing, stands twice, or is another one."""
    words = shlex.split(line)
    for at, word in enumerate(words):
        for what, others in (("missing", []), ("twice", [word, word]), *((f"odd {number}", [odd]) for number, odd in enumerate(ODD))):
            yield _case(f"{name}: word {at} {what}", [*words[:at], *others, *words[at + 1 :]], files)


def _other_files(name: str, line: str, files: Mapping[str, Any], seed: int) -> Iterator[Case]:
    """Yield lines whose files have another value, or are damaged."""
    words = shlex.split(line)
    for file, content in files.items():
        if isinstance(content, dict):
            for what, changed in mutations.mutated(content, (float("nan"), float("inf"), [["a"] * 100] * 100)):
                yield _case(f"{name}: {file} {what}", words, {**files, file: changed})
            continue
        for what, body in mutations.damaged(content.encode(), seed, 60):
            yield _case(f"{name}: {file} {what}", words, {**files, file: body})
        for number, place in enumerate(re.finditer(r"[\w${}:.\"-]+", content)):
            for index, odd in enumerate(ODD):
                changed = content[: place.start()] + odd + content[place.end() :]
                yield _case(f"{name}: {file} word {number} odd {index}", words, {**files, file: changed})


def _case(name: str, words: list[str], files: Mapping[str, Any]) -> Case:
    bodies = {file: content if isinstance(content, bytes) else _text(content).encode("utf-8", "replace") for file, content in files.items()}
    return Case(f"understood line, {name}", {WORDS: json.dumps(words).encode(), **bodies})


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content)
