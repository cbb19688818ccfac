"""What options of Megatron-LM state beyond its search space: FSDP, layers of several kinds, other models than causal decoders."""

import shlex

import pytest

from oppa.tuning.launch_line.meaning import Meaning
from oppa.tuning.launch_line.understand import understand
from tests.tuning.launch_line.conftest import CPUS

OPTIONS = "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 256 --max-position-embeddings 256 --bf16"
LINE = f"torchrun --nproc-per-node 8 pretrain_gpt.py {OPTIONS} --micro-batch-size 2 --global-batch-size 32"


def meaning(line: str) -> Meaning:
    """Return the meaning of a line."""
    return understand(shlex.split(line), environment={}, machine=CPUS)[1]


@pytest.mark.parametrize(
    ("words", "stage"),
    [
        ("--use-megatron-fsdp", 3),
        ("--use-custom-fsdp --use-distributed-optimizer --data-parallel-sharding-strategy optim_grads", 2),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy=optim", 1),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy no_shard --use-distributed-optimizer", 0),
        ("--use-torch-fsdp2", 3),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", 2),
    ],
)
def test_fsdp_keeps_its_stage_and_pipeline_and_its_memory_is_not_predicted(words, stage, job) -> None:
    made = job(f"{LINE} {words}")
    assert made.meaning.settings["zero_stage"] == stage and made.problem.stated_model is None
    assert made.problem.baseline is not None and made.problem.baseline.zero_stage == stage
    candidates = made.problem.candidates()
    assert {each.zero_stage for each in candidates if each.dp > 1} == {stage} and {each.pp for each in candidates} == {1}
    assert {each.tp for each in candidates} == {1, 2, 4, 8}
    assert any("has no FSDP" in note for note in made.meaning.notes)
    options = shlex.split(words.replace("=", " "))
    assert [word for word in made.problem.command.argv if "fsdp" in word] == [word for word in options if "fsdp" in word]
