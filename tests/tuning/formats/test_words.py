"""The words of search spaces before the parsers of their frameworks: each launch line means the configuration that it was made for."""

import json

import numpy as np
import pytest

from oppa.problem.job import load_job
from tests.sampling import nightly
from tests.tuning.formats.conftest import LIGHTNING_CLI, ask
from tests.tuning.formats.launch_lines import line
from tests.tuning.formats.torchtitan_knobs import EVERY_KNOB

SOME = 30
CLUSTER = 'batch = {global_batch = 64}\ncluster = {devices_per_host = 8, device = "H100", memory_limit = "80 GiB"}\n'
TITAN = """
import json, sys, types
from torchtitan.config import ConfigManager
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.pipeline_parallel import _get_pipeline_metadata
from torch.distributed.pipelining.schedules import get_schedule_class
from torchtitan.components.quantization import Float8LinearConverter
quantised = []
def record(self, config):  # the converter itself wants torchao and a GPU
    quantised.append(config.recipe_name)
    self.enabled = False
Float8LinearConverter.__init__ = record
found = []
for line in json.load(open(sys.argv[1])):
    quantised.clear()
    config = ConfigManager().parse_args(line)  # checks it, too
    p, t, ac = config.parallelism, config.training, config.activation_checkpoint
    dims = ParallelDims.from_config(p, world_size=8)
    found.append({"dp": dims.dp_replicate * dims.dp_shard, "dp_replicate": dims.dp_replicate, "tp": dims.tp, "pp": dims.pp, "ep": dims.ep,
        "cp": dims.cp, "cp_load_balancer": str(p.context_parallel_load_balancer), "zero_stage": p.fsdp_reshard_after_forward,
        "micro_batch": p.pipeline_parallel_microbatch_size if dims.pp > 1 else t.local_batch_size, "global_batch": t.global_batch_size,
        "local_batch": t.local_batch_size, "seq_len": t.seq_len, "schedule": get_schedule_class(p.pipeline_parallel_schedule).__name__,
        "model_chunks": _get_pipeline_metadata(dims, p, types.SimpleNamespace(layers=range(8)))[0] // dims.pp if dims.pp > 1 else 1,
        "compile": config.compile.enable, "async_tp": config.compile.enable_async_tensor_parallel, "cpu_offload": t.enable_cpu_offload,
        "sequence_parallel": p.enable_sequence_parallel, "cuda_graphs": not t.disable_cuda_graphs,
        "optimizer_implementation": config.optimizer.implementation, "recompute": type(ac)._owner.__name__ if ac else "none",
        "memory_budget": getattr(ac, "memory_budget", 1.0), "log_freq": config.metrics.log_freq,
        "float8": "llama3_debugmodel_float8" if quantised == ["rowwise"] else "none"})
print(json.dumps(found))
"""
TRAINER = """
import json, sys
from transformers import HfArgumentParser, TrainingArguments
found = []
for line in json.load(open(sys.argv[1])):
    parser = HfArgumentParser(TrainingArguments)
    (a,), stated = parser.parse_args_into_dataclasses([*line, "--use_cpu"]), parser.parse_args(line)
    found.append({**a.to_dict(), "dp_bucket_mb": a.ddp_bucket_cap_mb, "micro_batch": a.per_device_train_batch_size,
        "recompute": a.gradient_checkpointing, "zero_stage": a.fsdp_plugin_args and a.fsdp_plugin_args["reshard_after_forward"],
        "dataloader_pin_memory": stated.dataloader_pin_memory})  # a CPU has none
print(json.dumps(found, default=str))
"""
ACCELERATE = """
import json, os, sys
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils.launch import prepare_multi_gpu_env
os.environ["HF_HOME"] = os.devnull  # no settings of the user's own
ParallelismConfig._validate_torch_version = lambda self: None
found = []
for line in json.load(open(sys.argv[1])):
    args, *_ = _validate_launch_command(launch_command_parser().parse_args(line))
    environment = prepare_multi_gpu_env(args)
    os.environ.update({key: value for key, value in environment.items() if key.startswith("PARALLELISM_CONFIG_")})
    mesh = ParallelismConfig() if args.use_parallelism_config else None
    fsdp = "FSDP_VERSION" in environment
    reshard = environment.get("FSDP_RESHARD_AFTER_FORWARD", "")
    found.append({"ranks": mesh.total_size if mesh else args.num_processes, "tp": mesh.tp_size if mesh else 1,
        "cp": mesh.cp_size if mesh else 1, "dp_replicate": mesh.dp_replicate_size if mesh else 1,
        "cp_comm": args.parallelism_config_cp_comm_strategy, "fsdp": environment.get("FSDP_VERSION", ""), "reshard": reshard,
        "recompute": environment.get("FSDP_ACTIVATION_CHECKPOINTING", "false"),
        "fsdp_offload": environment.get("FSDP_OFFLOAD_PARAMS", "false"),
        "wrap": environment.get("FSDP_AUTO_WRAP_POLICY", ""), "program": [args.training_script, *args.training_script_args]})
print(json.dumps(found))
"""
LIGHTNING = (
    LIGHTNING_CLI
    + """
found = []
for line in json.load(open(sys.argv[1])):
    config = json.loads(json.dumps(Parsed(BoringModel, Data, run=False, args=line).config.as_dict(), default=str))
    strategy = config["trainer"]["strategy"]
    assert isinstance(strategy, dict) or strategy in StrategyRegistry.available_strategies()
    found.append(config)
print(json.dumps(found))
"""
)
SCHEDULES = {
    "1f1b": "Schedule1F1B",
    "gpipe": "ScheduleGPipe",
    "interleaved": "ScheduleInterleaved1F1B",
    "interleaved-zb": "ScheduleInterleavedZeroBubble",
    "zb-v": "ScheduleZBVZeroBubble",
}
FLOAT8 = 'float8 = ["none", "llama3_debugmodel_float8"]\n'
POLICIES = {"none": "none", "selective": "SelectiveAC", "full": "FullAC"}


@pytest.fixture
def understood(tmp_path):
    """Return what a framework's parser reads of configurations all over a space, each with its configuration."""

    def parse(module, program, space, argv, *, more="", knobs=""):
        (tmp_path / "job.toml").write_text(f'{CLUSTER}{more}\n[space]\nname = "{space}"\n[space.parameters]\n{knobs}')
        problem = load_job(tmp_path / "job.toml", argv=argv if "launch" in argv else ["torchrun", *argv])
        candidates = problem.candidates()
        chosen = [candidates.configuration(int(index)) for index in np.linspace(0, len(candidates) - 1, SOME, dtype=int)]
        lines = [line(problem, each)[2 if "launch" in argv else 1 :] for each in chosen]
        assert len(set(map(tuple, lines))) >= 20
        (tmp_path / "lines.json").write_text(json.dumps(lines))
        return list(zip(chosen, ask(module, program, tmp_path / "lines.json"), strict=True))

    return parse


def titan(configuration):
    """Return what torchtitan is to read for a configuration, apart from what does not matter in it."""
    c, sharded = configuration, configuration.zero_stage >= 2
    names = ("dp", "tp", "pp", "ep", "global_batch", "micro_batch", "model_chunks", "compile", "cuda_graphs")
    found = {name: c[name] for name in names} | {"local_batch": c.micro_batch if c.pp == 1 else c.batch_per_rank, "log_freq": 1}
    found |= {"dp_replicate": c.get("dp_replicate", 1) if sharded else c.dp, "seq_len": 128}
    found |= {"schedule": SCHEDULES[c.schedule]} if c.pp > 1 else {}
    found |= {"zero_stage": "never" if c.zero_stage == 2 else "always"} if sharded else {}
    budget = c.get("memory_budget", 1.0)
    found |= {"recompute": POLICIES[c.recompute] if budget == 1 else "MemoryBudgetAC", "memory_budget": budget}
    knobs = ("cp", "cp_load_balancer", "async_tp", "sequence_parallel", "cpu_offload", "optimizer_implementation", "float8")
    return found | {name: c[name] for name in knobs if name in c.names}


@pytest.mark.environment
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "module", "config", "knobs"),
    [
        ("tiny-4m", "llama3", "llama3_debugmodel", ""),
        ("tiny-4m", "llama3", "llama3_debugmodel", EVERY_KNOB + FLOAT8),
        ("mixtral-8x7b", "deepseek_v3", "deepseek_v3_debugmodel", ""),
    ],
    ids=["plain", "every knob", "experts"],
)
def test_torchtitan_reads_its_space(model, module, config, knobs, understood) -> None:
    argv = ["--module", module, "--config", config]
    more = f'[model]\npreset = "{model}"\nlayers = 8\nseq_len = 128\n'
    pairs = understood("torchtitan", TITAN, "torchtitan", argv, more=more, knobs=knobs)
    for configuration, found in pairs:
        expected = titan(configuration)
        assert {name: found[name] for name in expected} == expected
    if model != "tiny-4m":
        assert len({found["ep"] for _, found in pairs}) > 1
    elif knobs:
        assert all(
            len({configuration[name] for configuration, _ in pairs}) > 1 for name in ("cp", "dp_replicate", "memory_budget", "float8")
        )


TRAINER_KNOBS = """
bf16 = [false, true]
optim = ["adamw_torch_fused", "adafactor", "paged_adamw_8bit"]
train_sampling_strategy = ["random", "group_by_length"]
torch_compile_mode = ["default", "reduce-overhead", "max-autotune"]
dataloader_prefetch_factor = [2, 8]
dataloader_persistent_workers = [false, true]
dataloader_pin_memory = [false, true]
ddp_static_graph = [false, true]
use_liger_kernel = [false, true]
"""


@pytest.mark.slow
@pytest.mark.parametrize("knobs", [*nightly(""), TRAINER_KNOBS], ids=["plain", "every knob"])
def test_the_trainer_of_transformers_reads_its_space(knobs, understood) -> None:
    for configuration, found in understood("transformers", TRAINER, "transformers", ["--output_dir", "x"], knobs=knobs):
        c = configuration
        assert (found["micro_batch"], found["gradient_accumulation_steps"]) == (c.micro_batch, c.num_microbatches)
        assert (found["recompute"], found["zero_stage"]) == (c.recompute == "full", {0: None, 2: False, 3: True}[c.zero_stage])
        assert (found["logging_steps"], found["dp_bucket_mb"]) == (1, c.dp_bucket_mb if c.zero_stage == 0 else None)
        idle = set() if c["torch_compile"] else {"torch_compile_mode"}
        idle |= set() if c["dataloader_num_workers"] else {"dataloader_prefetch_factor", "dataloader_persistent_workers"}
        idle |= set() if c.zero_stage == 0 else {"ddp_static_graph"}
        expected = {extra.name: extra.value for extra in c.extras if extra.name not in idle}
        assert {name: found[name] for name in expected} == expected


ACCELERATE_KNOBS = """
cp = [1, 2, 4, 8]
cp_comm = ["allgather", "alltoall"]
dp_replicate = [1, 2, 4]
fsdp_offload = [false, true]
"""


@pytest.mark.slow
@pytest.mark.parametrize("knobs", [*nightly(""), ACCELERATE_KNOBS], ids=["plain", "every knob"])
def test_accelerate_reads_its_space(knobs, understood) -> None:
    argv = ["accelerate", "launch", "--num_processes", "8", "train.py", "--batch", "{micro_batch}"]
    pairs = understood("accelerate", ACCELERATE, "accelerate", argv, more='[model]\npreset = "tiny-4m"\n', knobs=knobs)
    for c, found in pairs:
        cp, sharded = c.get("cp", 1), c.zero_stage > 0
        assert (found["ranks"], found["tp"], found["cp"], found["dp_replicate"]) == (8, c.tp, cp, c.get("dp_replicate", 1))
        assert found["fsdp"] == ("2" if sharded or c.tp > 1 else "") and found["program"] == ["train.py", "--batch", str(c.micro_batch)]
        assert (found["recompute"], found["fsdp_offload"]) == (
            str(c.recompute == "full").lower(),
            str(c.get("fsdp_offload", False)).lower(),
        )
        if sharded:
            assert (found["reshard"], found["wrap"]) == (str(c.zero_stage == 3).lower(), "TRANSFORMER_BASED_WRAP")
        assert cp == 1 or found["cp_comm"] == c["cp_comm"]
    assert not knobs or (any(c["cp"] > 1 and c.dp == 1 for c, _ in pairs) and any(c["dp_replicate"] > 1 for c, _ in pairs))


LIGHTNING_KNOBS = """
strategy = ["ddp", "fsdp", "fsdp-shard-grad-op", "deepspeed"]
num_workers = [0, 4]
cudnn_benchmark = [false, true]
trainer_precision = ["32-true", "bf16-mixed", "16-mixed", "bf16-true"]
"""


@pytest.mark.environment
@pytest.mark.slow
def test_lightning_reads_its_space(understood) -> None:
    pairs = understood("jsonargparse", LIGHTNING, "lightning", [], knobs=LIGHTNING_KNOBS)
    for c, found in pairs:
        trainer, data = found["trainer"], found["data"]
        assert (int(trainer["devices"]), trainer["num_nodes"], trainer["accumulate_grad_batches"]) == (8, 1, c.num_microbatches)
        assert (data["batch_size"], data["num_workers"]) == (c.micro_batch, c["num_workers"])
        assert (trainer["precision"], trainer["benchmark"]) == (c["trainer_precision"], c["cudnn_benchmark"])
        (bar,) = trainer["callbacks"]
        assert bar["class_path"].endswith("TQDMProgressBar") and bar["init_args"]["refresh_rate"] == 1
        strategy = trainer["strategy"]
        if isinstance(strategy, dict):
            assert c.zero_stage == 2 and strategy["init_args"]["sharding_strategy"].endswith("SHARD_GRAD_OP")
        else:
            assert strategy == {"ddp": "ddp", "fsdp": "fsdp", "deepspeed": f"deepspeed_stage_{c.zero_stage}"}[c["strategy"]]
    assert {c.zero_stage for c, _ in pairs} == {0, 1, 2, 3}
