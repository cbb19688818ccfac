"""The line that is printed for a configuration states this configuration when it is read again, and states nothing twice."""

import collections
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from oppa.problem.baseline import ROUNDED
from oppa.problem.detect import Machine
from oppa.tuning.launch_line.changed_line import changed_line
from oppa.tuning.launch_line.line_job import LineJob
from oppa.tuning.launch_line.understand import understand
from tests.tuning.launch_line.conftest import CPUS, GPUS
from tests.tuning.launch_line.examples import LLAMA, RUN_TRAIN

PUBLISHED = sorted((Path(__file__).parents[2] / "published" / "launch_lines").glob("megatron_*.toml"))
WITHOUT_JOB = {"megatron_gpt3_175b_too_few_ranks"}
MEGATRON = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 16 --hidden-size 512 --num-attention-heads 8 --seq-length 256 "
    "--max-position-embeddings 256 --bf16 --micro-batch-size 2"
)
BRIDGE = "torchrun --nproc-per-node 8 run_recipe.py --recipe r"
TITAN = "torchrun --nproc-per-node 8 -m torchtitan.train --module llama3 --config llama3_8b --training.local_batch_size 1"
TRAINER = "torchrun --nproc-per-node 8 train.py --per_device_train_batch_size 4 --output_dir out"
LIGHTNING = "python train.py fit --trainer.devices 8 --data.batch_size=16"
LINES = {
    "default batch": MEGATRON,
    "alias of recomputation": f"{MEGATRON} --recompute-activations",
    "recomputation before 2022": f"{MEGATRON} --activations-checkpoint-method uniform",
    "alias of chunks": f"{MEGATRON} --global-batch-size 32 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4",
    "options without effect": (
        f"{MEGATRON} --tensor-model-parallel-size 8 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
        "--no-overlap-p2p-communication"
    ),
    "layout": f"{MEGATRON} --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Etttttttt|ttttttttL",
    "overrides": f"{BRIDGE} ++train.global_batch_size=32 train.micro_batch_size=2 +model.tensor_model_parallel_size=2",
    "torchtitan": TITAN,
    "subcommand": f"{TITAN} --training.disable_cuda_graphs --compile.enable activation_checkpoint:full",
    "torchtitan's file": "CONFIG_FILE=c.toml NGPU=8 ./run_train.sh --parallelism.tensor_parallel_degree 2",
    "trainer": f"{TRAINER} --gradient_checkpointing",
    "alias of the trainer": f"{TRAINER.replace('_batch_size 4', '-batch-size=4')} --activation_checkpointing",
    "accelerate": f"accelerate launch --num_processes 8 --gradient_accumulation_steps 2 {TRAINER.partition('8 ')[2]}",
    "lightning": f"{LIGHTNING} --trainer.strategy ddp",
    "lightning's class": f"{LIGHTNING} --trainer.strategy=FSDPStrategy --trainer.strategy.sharding_strategy=SHARD_GRAD_OP",
}


SYNONYMS = (
    {"--recompute-granularity", "--recompute-activations", "--activations-checkpoint-method"},
    {"--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage", "--pipeline-model-parallel-layout"},
    {"--gradient_checkpointing", "--activation_checkpointing"},
    {"--compile.enable", "--compile.no-enable"},
    {"activation_checkpoint:none", "activation_checkpoint:selective", "activation_checkpoint:full"},
)
"""Options of which a line has at most one."""


def require_round_trip(made: LineJob, *, environment: Mapping[str, str], machine: Machine) -> None:
    """Require the law of some configurations, which are evenly spread over the candidates."""
    problem, cluster = made.problem, {"hosts": made.problem.cluster.hosts, "devices_per_host": made.problem.cluster.devices_per_host}
    candidates = problem.candidates()
    for number in range(12):
        configuration = candidates.configuration(number * (len(candidates) - 1) // 11)
        words = changed_line(made, configuration).line
        line, meaning = understand(words, environment=environment, settings={"cluster": cluster}, machine=machine)
        varied = [known for known in problem.space.active(configuration) if len(known.choices) > 1 and known.name not in ROUNDED]
        stated = {known.name: meaning.settings.get(known.name, known.default) for known in varied}
        stated |= {} if "dp" in meaning.settings else {"dp": configuration.dp}  # a recipe has further degrees
        assert stated == {name: configuration[name] for name in stated}, words
        assert meaning.global_batch == made.meaning.global_batch, words
        names = collections.Counter(re.sub(r"^\+*|=.*", "", word.text) for word in line.arguments if re.match(r"--|[+\w.]+[=:]", word.text))
        assert all(len(names.keys() & same) <= 1 for same in SYNONYMS), words
        assert line.scripts or max(names.values()) == 1, words


@pytest.mark.parametrize("file", [file for file in PUBLISHED if file.stem not in WITHOUT_JOB], ids=lambda file: file.stem)
def test_a_published_line_of_megatron_is_printed_as_it_is_read(file, job) -> None:
    case = tomllib.loads(file.read_text())
    environment = case.get("environment", {})
    files = {name.lstrip("/"): text for name, text in case.get("files", {}).items()}
    require_round_trip(job(case["line"], files, machine=CPUS, environment=environment), environment=environment, machine=CPUS)


@pytest.mark.parametrize("line", LINES.values(), ids=LINES.keys())
def test_a_line_is_printed_as_it_is_read(line, job) -> None:
    made = job(line, {"run_train.sh": RUN_TRAIN, "c.toml": LLAMA})
    assert made.problem.baseline is not None and not changed_line(made, made.problem.baseline).changes
    require_round_trip(made, environment={}, machine=GPUS)
