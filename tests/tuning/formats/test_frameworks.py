"""The exports before the frameworks' own parsers, and before documented lists of names where those cannot be installed."""

import dataclasses
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from oppa.errors import InputError
from oppa.pipeline.torch_csv import parse_schedule
from oppa.problem.job import load_job
from oppa.problem.trial_values import values_of
from oppa.tuning.formats import colossalai, export, megatron_bridge, torchtitan
from tests.tuning.formats.conftest import MEGATRON_KNOBS, ask, at, requested, some_with_knobs

DEEPSPEED = """
import json, sys, torch.distributed
import deepspeed
from deepspeed.runtime.config import DeepSpeedConfig
from torch.testing._internal.distributed.fake_pg import FakeStore
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it is compiled
torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
found = []
for file, ranks in json.load(open(sys.argv[1])):
    class Ranks:
        get_data_parallel_world_size = lambda self: ranks
    c = DeepSpeedConfig(file, mpu=Ranks())
    z = c.zero_config
    found.append([c.train_batch_size, c.train_micro_batch_size_per_gpu, c.gradient_accumulation_steps, int(z.stage), z.overlap_comm,
        z.reduce_bucket_size, z.allgather_bucket_size, c.tensor_parallel_config.autotp_size, c.pipeline["stages"],
        c.pipeline["activation_checkpoint_interval"], c.bfloat16_config.enabled])
print(json.dumps(found))
"""
ACCELERATE = """
import json, math, sys
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
found = []
for file in sys.argv[1:]:
    c = load_config_from_file(file)
    sizes = {key.removeprefix("parallelism_config_"): value for key, value in c.parallelism_config.items()}
    if sizes.get("tp_size") == 1:  # its tensor parallelism wants transformers
        ParallelismConfig(**sizes)
    total = math.prod(sizes.values()) if sizes else c.num_processes
    args, defaults, _ = _validate_launch_command(launch_command_parser().parse_args(["--config_file", file, "train.py"]))
    found.append([c.distributed_type.value, total, args.use_fsdp, args.use_deepspeed, args.fsdp_version,
        str(args.fsdp_reshard_after_forward), args.fsdp_activation_checkpointing, args.deepspeed_config_file, args.mixed_precision])
print(json.dumps(found))
"""
DEEPSPEED_KNOBS = (
    DEEPSPEED.partition("    found.append(")[0]
    + """\
    device = lambda table: str(getattr(table.device, "value", table.device)) if table else "none"
    found.append([json.load(open(file)).get("sequence_parallel_size", 1), z.zero_hpz_partition_size, device(z.offload_optimizer),
        device(z.offload_param), z.zero_quantized_weights, z.zero_quantized_gradients])
print(json.dumps(found))
"""
)
ACCELERATE_KNOBS = """
import json, sys
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
found = []
for file in sys.argv[1:]:
    c = load_config_from_file(file)
    sizes = {key.removeprefix("parallelism_config_"): value for key, value in c.parallelism_config.items() if key.endswith("_size")}
    if sizes.get("tp_size") == 1:  # its tensor parallelism wants transformers
        ParallelismConfig(**sizes)
    args, *_ = _validate_launch_command(launch_command_parser().parse_args(["--config_file", file, "train.py"]))
    found.append([args.parallelism_config_dp_replicate_size, args.parallelism_config_cp_size, str(args.fsdp_offload_params),
        args.num_processes])
print(json.dumps(found))
"""
COLOSSALAI = """
import ast, importlib.util, json, pathlib
found = {}
for name in ("hybrid_parallel_plugin", "moe_hybrid_parallel_plugin"):
    folder = pathlib.Path(importlib.util.find_spec("colossalai").origin).parent
    tree = ast.parse((folder / "booster" / "plugin" / f"{name}.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name.endswith("HybridParallelPlugin"):
            init = next(each for each in node.body if getattr(each, "name", "") == "__init__")
            found[node.name] = [each.arg for each in init.args.args]
print(json.dumps(found))
"""
MEGATRON = """
import ast, dataclasses, importlib.util, json, pathlib
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer import TransformerConfig
bridge = pathlib.Path(importlib.util.find_spec("megatron.bridge").origin).parent  # to import it takes Transformer Engine
def members(file, name):
    classes = (each for each in ast.walk(ast.parse((bridge / file).read_text())) if isinstance(each, ast.ClassDef))
    body = next(each for each in classes if each.name == name).body
    fields = [each.target.id for each in body if isinstance(each, ast.AnnAssign)]
    return fields + [each.name for each in body if isinstance(each, ast.FunctionDef)]  # of which some are properties
kinds = {"ddp": DistributedDataParallelConfig, "model": TransformerConfig, "optimizer": OptimizerConfig}
known = {key: [field.name for field in dataclasses.fields(kind)] for key, kind in kinds.items()}
known["model"] += members("models/gpt_provider.py", "GPTModelProvider")
for key, name in {"": "ConfigContainer", "train": "TrainingConfig", "dataset": "GPTDatasetConfig"}.items():
    known[key] = members("training/config.py", name)
print(json.dumps(known))
"""
TORCHTITAN = """
import json, os, sys, types
from torchtitan.config import ConfigManager
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.pipeline_parallel import _get_pipeline_metadata
os.environ["BASE"], found = sys.argv[1], []
for folder in sys.argv[2:]:
    sys.path.insert(0, folder)
    sys.modules.pop("oppa_recipe", None)
    config = ConfigManager().parse_args(["--module", "oppa_recipe", "--config", "fastest"])
    p, t = config.parallelism, config.training
    dims = ParallelDims(dp_replicate=p.data_parallel_replicate_degree, dp_shard=p.data_parallel_shard_degree, cp=p.context_parallel_degree,
        tp=p.tensor_parallel_degree, pp=p.pipeline_parallel_degree, ep=p.expert_parallel_degree, world_size=8)
    piped, layers = dims.pp > 1, types.SimpleNamespace(layers=range(8))
    ac = type(config.activation_checkpoint)._owner.__name__ if config.activation_checkpoint else None
    found.append([dims.dp_replicate, dims.dp_shard, dims.tp, dims.pp, dims.ep, p.fsdp_reshard_after_forward, ac, t.local_batch_size,
        t.global_batch_size, t.seq_len, _get_pipeline_metadata(dims, p, layers)[0] if piped else 1,
        t.local_batch_size // p.pipeline_parallel_microbatch_size if piped else 1])
print(json.dumps(found))
"""
TORCHTITAN_NAMES = {
    "parallelism": re.findall(
        r"\w+",
        """data_parallel_replicate_degree data_parallel_shard_degree fsdp_reshard_after_forward tensor_parallel_degree
        pipeline_parallel_degree pipeline_parallel_schedule pipeline_parallel_layers_per_stage num_pp_microbatches
        pipeline_parallel_first_stage_less_layers pipeline_parallel_last_stage_less_layers context_parallel_degree
        expert_parallel_degree pipeline_parallel_schedule_csv""",
    ),
    "training": re.findall(
        r"\w+",
        """num_tokens_per_microbatch_per_dp_rank num_tokens_per_train_step max_context_length disable_cuda_graphs
        mixed_precision_param max_norm""",
    ),
}
"""github.com/pytorch/torchtitan: torchtitan/config/parallelism.py at 15e2431, torchtitan/config/training.py at f204eb6."""
MEGATRON_LM = """
    --tensor-model-parallel-size --pipeline-model-parallel-size --expert-model-parallel-size --num-virtual-stages-per-pipeline-rank
    --micro-batch-size --global-batch-size --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size
    --no-overlap-p2p-communication --sequence-parallel --recompute-granularity --recompute-method --recompute-num-layers --num-layers
    --hidden-size --ffn-hidden-size --num-attention-heads --group-query-attention --num-query-groups --seq-length
    --max-position-embeddings --position-embedding-type --normalization --swiglu --disable-bias-linear --add-qkv-bias
    --untie-embeddings-and-output-weights --num-experts --moe-router-topk --bf16 --lr --adam-beta2 --seed --train-iters --mock-data
    --tokenizer-type --vocab-size --optimizer --sgd-momentum --weight-decay --clip-grad --attention-dropout --hidden-dropout
"""
"""Names of options as Megatron-LM's examples and users' launch scripts have them; its parser comes with no package that could be asked."""
MEGATRON_LM_PARSER = """
import json, os, sys, types
from unittest.mock import MagicMock
import torch
sys.modules["megatron.core.transformer.custom_layers.batch_invariant_kernels"] = MagicMock()  # imports triton
torch.cuda.get_device_capability = lambda *a: (9, 0)
torch.cuda.get_device_properties = lambda *a: types.SimpleNamespace(major=9, minor=0)
import megatron.core.transformer.moe.moe_utils as moe
import megatron.core.transformer.transformer_config as config
import megatron.training.arguments as arguments
for module in (config, arguments):
    module.is_te_min_version = lambda *a, **b: True  # kernels of Transformer Engine are not needed to check options
names = "fused_permute fused_permute_with_probs fused_sort_chunks_by_index fused_sort_chunks_by_index_with_probs fused_unpermute"
for name in names.split():
    setattr(moe, name, MagicMock())
os.environ |= {"WORLD_SIZE": sys.argv[1], "RANK": "0", "NVTE_CPU_OFFLOAD_V1": "1"}
refused = []
for line in json.load(open(sys.argv[2])):
    sys.argv = ["pretrain_gpt.py", *line]
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "8" if "--overlap-moe-expert-parallel-comm" in line else "1"
    try:
        args = arguments.validate_args(arguments.parse_args())
        arguments.core_transformer_config_from_args(args)
    except BaseException as error:
        refused.append([" ".join(line), repr(error)])
sys.stdout.write("\\n" + json.dumps(refused))
"""
ZERO = [{"zero_stage": 3, "zero_bucket_mb": 256}, {"dp": 4, "pp": 2, "recompute": "full"}, {"dp": 4, "tp": 2}]


@pytest.fixture(scope="module")
def loaded_by_deepspeed(problem_of, tmp_path_factory):
    """Return what DeepSpeed reads in the files of all configurations, in one process."""
    folder, problem, files = tmp_path_factory.mktemp("deepspeed"), problem_of("deepspeed"), []
    for number, values in enumerate(ZERO):
        configuration = at(**{"zero_bucket_mb": 954, **values})
        (path := folder / f"{number}.json").write_text(export("deepspeed", problem, configuration)["ds_config.json"])
        files.append([str(path), configuration.dp])
    (folder / "files").write_text(json.dumps(files))
    return ask("deepspeed", DEEPSPEED, folder / "files")


INTERLEAVED = {"dp": 2, "pp": 2, "tp": 2, "schedule": "interleaved", "model_chunks": 2, "overlap_p2p": True}


@pytest.mark.environment
@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(ZERO)), ids=lambda number: str(ZERO[number]))
def test_deepspeed_itself_loads_the_file(number, loaded_by_deepspeed) -> None:
    configuration = at(**{"zero_bucket_mb": 954, **ZERO[number]})
    total, micro, steps, stage, overlap, reduced, gathered, tp, stages, interval, half = loaded_by_deepspeed[number]
    assert (total, micro, steps) == (64, 2, configuration.num_microbatches) and half
    assert (stage, overlap or False, tp or 1) == (configuration.zero_stage, configuration.overlap_zero_comm, configuration.tp)
    assert stage == 0 or reduced == gathered == 256 * 2**20 // 2
    assert (stages, interval) == ((2, 1) if configuration.pp == 2 else ("auto", 0))


LAUNCHED = [
    ("torch", {"zero_stage": 3, "recompute": "full"}, ["FSDP", 8, True, False, 2, "True", True, None, "bf16"]),
    ("torch", {"zero_stage": 2, "dp": 4, "tp": 2}, ["FSDP", 8, True, False, 2, "False", False, None, "bf16"]),
    ("torch", {}, ["MULTI_GPU", 8, False, False, None, None, None, None, "bf16"]),
    ("deepspeed", {"zero_stage": 1, "zero_bucket_mb": 64}, ["DEEPSPEED", 8, False, True, None, None, None, "ds_config.json", None]),
]


@pytest.mark.slow
def test_accelerate_itself_loads_each_file_and_would_launch_it(problem_of, tmp_path) -> None:
    files = [tmp_path / f"{number}.yaml" for number in range(len(LAUNCHED))]
    for path, (space, values, _) in zip(files, LAUNCHED, strict=True):
        path.write_text(export("accelerate", problem_of(space), at(**values))["accelerate.yaml"])
    every = ask("accelerate", ACCELERATE, *files)
    assert isinstance(every, list)
    for found, (*case, expected) in zip(every, LAUNCHED, strict=True):
        assert all(want is None or want == got for want, got in zip(expected, found, strict=True)), (case, found)


ON_CPUS = """
[model]
preset = "tiny-1m"
[batch]
global_batch = 8
[cluster]
devices_per_host = 2
memory_limit = "1 GiB"
[training]
precision = "fp32"
"""
RANKS = """import os
from accelerate import Accelerator
a = Accelerator()
os.write(1, f"{a.num_processes} {a.gradient_accumulation_steps}\\n".encode())  # one write, which that of the other rank does not part
"""


@pytest.mark.slow
def test_accelerate_itself_starts_ranks_on_cpus_that_train_together(tmp_path) -> None:
    (tmp_path / "job.toml").write_text(ON_CPUS)
    (tmp_path / "train.py").write_text(RANKS)
    problem = load_job(tmp_path / "job.toml")
    for name, text in export("accelerate", problem, at(dp=2, global_batch=8, micro_batch=2)).items():
        (tmp_path / name).write_text(text)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    started = ["sh", str(tmp_path / "run.sh"), str(tmp_path / "train.py")]
    ran = subprocess.run(started, capture_output=True, text=True, check=True, env={**os.environ, "PATH": path}, cwd=tmp_path)
    assert ran.stdout.split() == ["2", "2"] * 2
    with pytest.raises(InputError, match="zero_stage") as refused:
        export("accelerate", problem, at(dp=2, global_batch=8, micro_batch=2, zero_stage=3))
    assert "accelerate shards on no CPUs" in refused.value.hint


@pytest.mark.environment
@pytest.mark.slow
def test_deepspeed_itself_reads_the_knobs(problem_of, tmp_path) -> None:
    problem, configurations = some_with_knobs(problem_of, "deepspeed", 40)
    files = []
    for number, each in enumerate(configurations):
        (path := tmp_path / f"{number}.json").write_text(export("deepspeed", problem, each)["ds_config.json"])
        files.append([str(path), each.dp])
    (tmp_path / "files").write_text(json.dumps(files))
    names = ("sp", "hpz", "offload_optimizer", "offload_params", "quantized_weights", "quantized_gradients")
    assert ask("deepspeed", DEEPSPEED_KNOBS, tmp_path / "files") == [[each[name] for name in names] for each in configurations]


@pytest.mark.slow
def test_accelerate_itself_reads_the_knobs(problem_of, tmp_path) -> None:
    problem, configurations = some_with_knobs(problem_of, "accelerate", 60)
    sharded, files = [each for each in configurations if each.zero_stage], []
    for number, each in enumerate(sharded):
        (path := tmp_path / f"{number}.yaml").write_text(export("accelerate", problem, each)["accelerate.yaml"])
        files.append(path)
    found = ask("accelerate", ACCELERATE_KNOBS, *files)
    assert len(sharded) > 20 and found == [[each["dp_replicate"], each["cp"], str(each["fsdp_offload"]), 8] for each in sharded]


@pytest.mark.environment
@pytest.mark.slow
def test_colossalais_plugins_have_these_arguments(problem_of) -> None:
    known = ask("colossalai", COLOSSALAI)
    problem = problem_of("colossalai")
    for values in ({"zero_stage": 2, "zero_bucket_mb": 24}, INTERLEAVED, {"zero_bucket_mb": 24}):
        assert colossalai.arguments(problem, at(**values)).keys() <= set(known["HybridParallelPlugin"])
    mixture = problem_of("colossalai", model="mixtral-8x7b")
    assert colossalai.arguments(mixture, at(ep=2)).keys() <= set(known["MoeHybridParallelPlugin"])


@pytest.mark.environment
@pytest.mark.slow
def test_megatron_bridge_has_the_fields_that_are_set(problem_of) -> None:
    known = ask("megatron.bridge", MEGATRON)
    values = megatron_bridge.values(problem_of("megatron"), at(**INTERLEAVED, overlap_zero_comm=True, dp_bucket_mb=256))
    for path in (*values, *megatron_bridge.PATHS.values()):
        part, _, name = path.rpartition(".")
        assert name in known[part], path


@pytest.mark.environment
@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny-4m", "mixtral-8x7b"])
def test_megatron_lm_itself_accepts_the_words_of_its_space(model, problem_of, tmp_path) -> None:
    lines = []
    for group in MEGATRON_KNOBS:
        problem = requested(problem_of, group, model=model)
        candidates = problem.candidates()
        for index in random.Random(0).sample(range(len(candidates)), 20):
            configuration = candidates.configuration(index)
            values = values_of(configuration, problem.model, problem.cluster, problem.training, steps=3, folder=tmp_path)
            lines.append(problem.launch_line(configuration).words(values, {})[2:])
    (tmp_path / "lines.json").write_text(json.dumps(lines))
    assert ask("megatron.training", MEGATRON_LM_PARSER, 8, tmp_path / "lines.json") == []


@pytest.mark.parametrize("values", [INTERLEAVED, {"dp": 4, "tp": 2, "ep": 2, "zero_stage": 1, "recompute": "full"}])
def test_megatron_lm_documents_every_option(values, problem_of) -> None:
    problem = problem_of("megatron", model="mixtral-8x7b")
    chosen = at(**values, overlap_zero_comm=True, dp_bucket_mb=256)
    text = export("megatron", problem, chosen)["megatron_args.sh"]
    assert set(re.findall(r"--[\w-]+", text)) <= set(re.findall(r"--[\w-]+", MEGATRON_LM))


def test_megatron_lm_gets_sgd(problem_of) -> None:
    problem = problem_of("megatron")
    training = dataclasses.replace(problem.training, optimizer="sgd", momentum=0.8)
    text = export("megatron", dataclasses.replace(problem, training=training), at(dp=8, overlap_zero_comm=True))["megatron_args.sh"]
    assert "--optimizer sgd" in text and "--sgd-momentum 0.8" in text and "--adam-beta2" not in text


@pytest.mark.environment
@pytest.mark.slow
def test_torchtitan_itself_takes_the_recipe(problem_of, tmp_path) -> None:
    replicated, ddp_pipeline, sharded, full = (
        {},
        {"dp": 4, "pp": 2, "schedule": "zb-v", "model_chunks": 2},
        {"dp": 4, "tp": 2, "zero_stage": 2, "recompute": "selective"},
        {"dp": 2, "tp": 2, "pp": 2, "schedule": "interleaved", "model_chunks": 4, "zero_stage": 3, "recompute": "full"},
    )
    for index, values in enumerate((replicated, ddp_pipeline, sharded, full)):
        (tmp_path / str(index)).mkdir()
        (tmp_path / str(index) / torchtitan.RECIPE).write_text(export("torchtitan", problem_of("torch"), at(**values))[torchtitan.RECIPE])
    base = "torchtitan.models.llama3.config_registry:llama3_debugmodel"
    assert ask("torchtitan", TORCHTITAN, base, *(tmp_path / str(index) for index in range(4))) == [
        [8, 1, 1, 1, 1, "default", None, 2, 64, 128, 1, 1],
        [4, 1, 1, 2, 1, "default", None, 16, 64, 128, 4, 8],
        [1, 4, 2, 1, 1, "never", "SelectiveAC", 2, 64, 128, 1, 1],
        [1, 2, 2, 2, 1, "always", "FullAC", 32, 64, 128, 8, 16],
    ]


@pytest.mark.environment
@pytest.mark.slow
def test_torchtitan_itself_takes_the_recipe_of_a_mixture(problem_of, tmp_path) -> None:
    problem = problem_of("torch", model="mixtral-8x7b")
    (tmp_path / torchtitan.RECIPE).write_text(export("torchtitan", problem, at(ep=4, zero_stage=2))[torchtitan.RECIPE])
    base = "torchtitan.models.deepseek_v3.config_registry:deepseek_v3_debugmodel"
    (found,) = ask("torchtitan", TORCHTITAN, base, tmp_path)
    assert found[:6] == [1, 8, 1, 1, 4, "never"]


def test_tensor_parallelism_has_sequence_parallelism(problem_of) -> None:
    dense, mixture = problem_of("megatron"), problem_of("megatron", model="mixtral-8x7b")
    for problem, values, expected in ((mixture, {"dp": 4, "tp": 2}, True), (mixture, {}, False), (dense, {"dp": 4, "tp": 2}, True)):
        chosen = at(**values, overlap_p2p=True, dp_bucket_mb=153)
        assert ("--sequence-parallel" in export("megatron", problem, chosen)["megatron_args.sh"]) is expected
        assert megatron_bridge.values(problem, chosen)["model.sequence_parallel"] is expected


@pytest.mark.parametrize(("chunks", "schedule"), [(1, "PipelineScheduleSingle"), (2, "ZBVZeroBubble"), (4, "PipelineScheduleMulti")])
def test_torchtitan_reads_an_order_that_was_searched_for(chunks, schedule, problem_of) -> None:
    chosen = at(dp=2, tp=2, pp=2, schedule="search", model_chunks=chunks)
    files = export("torchtitan", problem_of("torch"), chosen)
    found = parse_schedule(files[torchtitan.ORDER], torchtitan.ORDER)
    assert (found.shape.ranks, found.shape.chunks, found.shape.micro_batches) == (2, chunks, chosen.num_microbatches)
    assert found.shape.folded is (chunks == 2), "laid out as torchtitan lays the stages of that schedule"
    assert schedule in files[torchtitan.RECIPE]
    stated = next(line for line in files[torchtitan.RECIPE].splitlines() if "schedule_csv" in line).partition(" = ")[2]
    assert eval(stated, {"os": os, "__file__": "/recipes/oppa_recipe.py"}) == "/recipes/schedule.csv"


def test_torchtitan_documents_every_name_of_what_came_after_its_release(problem_of) -> None:
    problem = problem_of("torch")
    pipelines = ({"dp": 4, "pp": 2, "schedule": "zb-v", "model_chunks": 2}, {"dp": 4, "pp": 2, "schedule": "search"})
    for values in (*pipelines, {"ep": 2, "zero_stage": 3}):
        for path in torchtitan.values(problem, at(**values)) | torchtitan.in_tokens(problem, at(**values)):
            part, _, name = path.partition(".")
            assert part == "activation_checkpoint" or name in TORCHTITAN_NAMES[part], path
