"""Adopt files of frameworks in jobs, as imports do."""

from pathlib import Path

from oppa.problem.trial_values import values_of
from oppa.tuning.formats import FORMATS
from oppa.tuning.formats.adoption import completed, new_job, settled
from oppa.tuning.formats.job_facts import facts_of

JOB = """\
# A job.
[model]
preset = "tiny-4m"  # small

[batch]
global_batch = 64  # sequences

[cluster]
devices_per_host = 8
device = "H100"
memory_limit = "80 GiB"

[training]
precision = "bf16"
"""
LLAMA = """
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32
    --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear
    --untie-embeddings-and-output-weights --tokenizer-type NullTokenizer --vocab-size 32000 --bf16 --lr 1e-4
    --tensor-model-parallel-size 2 --micro-batch-size 2 --global-batch-size 64
""".replace("\n   ", "")
OWN = """
[command]
argv = ["torchrun", "train.py", "--micro-batch", "{micro_batch}"]
"""


def adopted(tmp_path: Path, origin: str, files: dict[str, str], job: str = "", take=None):
    """The draft and its problem for files, with a job or without."""
    path, facts = tmp_path / "job.toml", facts_of(origin, files)
    if job:
        path.write_text(job)
    draft = completed(path, facts, origin=origin) if job else new_job(path, facts, origin=origin, source="file")
    draft = settled(draft, facts, FORMATS[origin].parse(draft.problem(), files), origin=origin, take=take)
    return draft, draft.problem()


def launch_line(problem, folder: Path) -> list[str]:
    configuration = problem.candidates().configuration(0)
    return problem.command.words(values_of(configuration, problem.model, problem.cluster, problem.training, steps=3, folder=folder), {})
