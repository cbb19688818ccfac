"""A job in each framework's search space, and the interpreters in which the frameworks themselves can be asked."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from oppa import catalog
from oppa.problem.baseline import at_rest, complete
from oppa.problem.configuration import Configuration
from oppa.problem.declaration import spell
from oppa.problem.job import load_job
from oppa.problem.space_file import read_space
from oppa.trials import environments
from oppa.tuning.formats import FORMATS

JOB = """
name = "llama"
model = {{preset = "{model}"}}
batch = {{global_batch = {batch}}}
cluster = {{devices_per_host = {devices}, hosts = {hosts}, device = "H100", memory_limit = "80 GiB"}}
runner = {{name = "{runner}"}}
training = {{precision = "{precision}"}}
{rest}
"""


LAUNCHED = """
[command]
argv = ["torchrun", "pretrain_gpt.py", "--num-layers", "{layers}", "--hidden-size", "{hidden}", "--num-attention-heads", "{heads}",
    "--ffn-hidden-size", "{ffn}", "--group-query-attention", "--num-query-groups", "{kv_heads}", "--seq-length", "{seq_len}",
    "--max-position-embeddings", "{seq_len}", "--swiglu", "--disable-bias-linear", "--no-rope-fusion", "--bf16", "--lr", "1e-4",
    "--train-iters", "{steps}", "--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", "32000", "--attention-dropout", "0",
    "--hidden-dropout", "0", EXPERTS]
[command.steps]
format = "megatron"
"""
MEGATRON_KNOBS = (
    "cp cp_comm expert_tp pp_before_dp",
    "first_stage_layers last_stage_layers pp_before_dp",
    "embedding_as_layer loss_as_layer pp_before_dp",
    "recompute_modules recompute_method recompute_layers moe_grouped_gemm",
    "offload_layers offload_modules cuda_graphs",
    "optimizer_offload optimizer_offload_overlap optimizer_instances moments",
    "tp_comm_overlap overlap_warmup_flush average_in_collective pad_buckets defer_embedding_wgrad",
    "cross_entropy attention_backend manual_gc num_workers",
    "moe_dispatcher moe_flex_backend moe_grouped_gemm moe_permute_fusion moe_router_fusion moe_comm_overlap delay_wgrad",
    "fp8 fp8_param_gather grad_reduce_bf16 recompute_modules",
)
"""Knobs of search_spaces/megatron.toml that are searched together; all at once have too many combinations."""


@pytest.fixture(scope="session")
def problem_of(tmp_path_factory):
    """A job of eight H100 in the search space of a framework."""

    def make(space, *, model="tiny-4m", batch=64, devices=8, hosts=1, precision="bf16", runner="simulated", knobs="", rest=""):
        path: Path = tmp_path_factory.mktemp("job") / "job.toml"
        chosen = f"parameters = {{{knobs}}}\n" if knobs else ""
        searched = "" if runner != "simulated" else f'[space]\nname = "{space}"\n{chosen}'
        values = {"model": model, "batch": batch, "devices": devices, "hosts": hosts, "precision": precision, "runner": runner}
        path.write_text(JOB.format(**values, rest=searched + rest))
        return load_job(path)

    return make


def requested(problem_of, group: str, *, model: str, devices: int = 8):
    """A job with a launch line that names no parameter, and with choices for some knobs, all that they have."""
    experts = ', "--num-experts", "{experts}", "--moe-router-topk", "{experts_per_token}"' if model.startswith("mixtral") else ""
    line = LAUNCHED.replace(", EXPERTS", experts)
    space = read_space(catalog.find("search_spaces", "megatron").read_text(), name="megatron", facts=problem_of("megatron").space.facts)
    choices = "".join(f"{name} = {spell(list(space[name].values))}\n" for name in group.split())
    fixed = "micro_batch = 2\ndp_bucket_mb = [153, 64]\nmodel_chunks = [1, 2]\n"
    rest = f'{line}[space]\nname = "megatron"\n[space.parameters]\n{fixed}{choices}'
    return problem_of("megatron", model=model, devices=devices, runner="command", rest=rest)


KNOBS = {
    "deepspeed": "sp = [1, 2, 4]\nhpz = [1, 2]\noffload_optimizer = ['none', 'cpu']\noffload_params = ['none', 'cpu']\n"
    "quantized_weights = [false, true]\nquantized_gradients = [false, true]\nzero_bucket_mb = 64\n",
    "accelerate": "dp_replicate = [1, 2, 4]\ncp = [1, 2, 4]\ncp_comm = ['allgather', 'alltoall']\nfsdp_offload = [false, true]\n",
}
"""Choices for the knobs of a framework's space, as a job has them."""


def some_with_knobs(problem_of, space: str, count: int):
    """A job with choices for the knobs of a framework's space, and some of its configurations."""
    problem = problem_of(space, rest=f"[space.parameters]\n{KNOBS[space]}")
    candidates = problem.candidates()
    return problem, [candidates.configuration(index) for index in random.Random(0).sample(range(len(candidates)), count)]


def at(**values):
    return Configuration(**{"global_batch": 64, "micro_batch": 2, "dp": 8, **values})


def read_back(name, problem, files):
    """The configuration that files mean, in the problem's space."""
    return at_rest(problem.space, complete(problem.space, FORMATS[name].parse(problem, files).settings))


LIGHTNING_CLI = """
import json, sys
from lightning.pytorch import LightningDataModule
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.strategies import StrategyRegistry
class Data(LightningDataModule):
    def __init__(self, batch_size: int = 1, num_workers: int = 0):
        super().__init__()
class Parsed(LightningCLI):
    def instantiate_classes(self):  # FSDP wants a GPU, and DeepSpeed its package
        pass
"""
"""The beginning of a program that parses lines with LightningCLI."""

PACKAGES = {
    "torchtitan": "torchtitan==0.3.0 triton",
    "megatron.bridge": "--no-deps megatron-core==0.16.1 megatron-bridge==0.3.1",
    "jsonargparse": "lightning jsonargparse[signatures]",
}
"""Packages that hold a framework which is no runner's. torchtitan takes more than 1 GB; the dependencies of megatron-bridge need a GPU."""


def ask(module: str, program: str, *arguments: object) -> object:
    """Return what a program prints as JSON where a framework is installed: its own environment, that of OPPA_FRAMEWORKS, or this one.

    Skip the test, with what to do, where none has it.
    """
    made = [str(each.python) for each in environments.known() if each.name == module and each.state == "ready"]
    pythons = [*made, *filter(None, [os.environ.get("OPPA_FRAMEWORKS")]), sys.executable]
    having = next((python for python in pythons if _has(python, module)), "")
    if not having:
        package = PACKAGES.get(module)
        how = f"`pip install {package}` into an environment that has torch" if package else f"`oppa env create {module}`"
        pytest.skip(f"{module} is not installed: {how}, or OPPA_FRAMEWORKS=/path/to/a/python that has it")
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([having, "-c", program, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def _has(python: str, module: str) -> bool:
    search = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"  # an error without its package
    return subprocess.run([python, "-c", search, module], capture_output=True).returncode == 0
