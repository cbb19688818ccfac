"""The exports before the frameworks' own parsers, and before documented lists of names where those cannot be installed."""

import re

import pytest

from oppa.tuning.formats import colossalai, export, megatron_bridge, torchtitan
from tests.tuning.formats.conftest import ask
from tests.tuning.formats.test_formats import at

DEEPSPEED = """
import json, sys, torch.distributed
import deepspeed
from deepspeed.runtime.config import DeepSpeedConfig
from torch.testing._internal.distributed.fake_pg import FakeStore
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it is compiled
torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
class Ranks:
    get_data_parallel_world_size = lambda self: int(sys.argv[2])
c = DeepSpeedConfig(sys.argv[1], mpu=Ranks())
z = c.zero_config
print(json.dumps([c.train_batch_size, c.train_micro_batch_size_per_gpu, c.gradient_accumulation_steps, int(z.stage), z.overlap_comm,
    z.reduce_bucket_size, z.allgather_bucket_size, c.tensor_parallel_config.autotp_size, c.pipeline["stages"],
    c.pipeline["activation_checkpoint_interval"], c.bfloat16_config.enabled]))
"""
ACCELERATE = """
import json, math, sys
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
c = load_config_from_file(sys.argv[1])
sizes = {key.removeprefix("parallelism_config_"): value for key, value in c.parallelism_config.items()}
if sizes.get("tp_size") == 1:  # its tensor parallelism wants transformers
    ParallelismConfig(**sizes)
total = math.prod(sizes.values()) if sizes else c.num_processes
args, defaults, _ = _validate_launch_command(launch_command_parser().parse_args(["--config_file", sys.argv[1], "train.py"]))
print(json.dumps([c.distributed_type.value, total, args.use_fsdp, args.use_deepspeed, args.fsdp_version,
    str(args.fsdp_reshard_after_forward), args.fsdp_activation_checkpointing, args.deepspeed_config_file, args.mixed_precision]))
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
MEGATRON_CORE = """
import dataclasses, json
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer import TransformerConfig
kinds = {"ddp": DistributedDataParallelConfig, "model": TransformerConfig, "optimizer": OptimizerConfig}
print(json.dumps({key: [field.name for field in dataclasses.fields(kind)] for key, kind in kinds.items()}))
"""
TORCHTITAN = {
    "parallelism": re.findall(
        r"\w+",
        """data_parallel_replicate_degree data_parallel_shard_degree fsdp_reshard_after_forward tensor_parallel_degree
        pipeline_parallel_degree pipeline_parallel_schedule pipeline_parallel_layers_per_stage num_pp_microbatches
        pipeline_parallel_first_stage_less_layers pipeline_parallel_last_stage_less_layers expert_parallel_degree""",
    ),
    "training": ["num_tokens_per_microbatch_per_dp_rank", "num_tokens_per_train_step", "max_context_length"],
}
"""github.com/pytorch/torchtitan: torchtitan/config/parallelism.py at 15e2431, torchtitan/config/training.py at f204eb6."""
MEGATRON_LM = """
    --tensor-model-parallel-size --pipeline-model-parallel-size --expert-model-parallel-size --num-virtual-stages-per-pipeline-rank
    --micro-batch-size --global-batch-size --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size
    --no-overlap-p2p-communication --sequence-parallel --recompute-granularity --recompute-method --recompute-num-layers --num-layers
    --hidden-size --ffn-hidden-size --num-attention-heads --group-query-attention --num-query-groups --seq-length
    --max-position-embeddings --position-embedding-type --normalization --swiglu --disable-bias-linear --add-qkv-bias
    --untie-embeddings-and-output-weights --num-experts --moe-router-topk --bf16 --lr --seed --train-iters --mock-data
    --tokenizer-type --vocab-size
"""
"""Names of options as Megatron-LM's examples and users' launch scripts have them; its parser comes with no package that could be asked."""
INTERLEAVED = {"dp": 2, "pp": 2, "tp": 2, "schedule": "interleaved", "model_chunks": 2, "overlap_p2p": True}


@pytest.mark.slow
@pytest.mark.parametrize("values", [{"zero_stage": 3, "zero_bucket_mb": 256}, {"dp": 4, "pp": 2, "recompute": "full"}, {"dp": 4, "tp": 2}])
def test_deepspeed_itself_loads_the_file(values, problem_of, tmp_path) -> None:
    configuration = at(**{"zero_bucket_mb": 954, **values})
    (tmp_path / "ds.json").write_text(export("deepspeed", problem_of("deepspeed"), configuration)["ds_config.json"])
    total, micro, steps, stage, overlap, reduced, gathered, tp, stages, interval, half = ask(
        "deepspeed", DEEPSPEED, tmp_path / "ds.json", configuration.dp
    )
    assert (total, micro, steps) == (64, 2, configuration.num_microbatches) and half
    assert (stage, overlap or False, tp or 1) == (configuration.zero_stage, configuration.overlap_zero_comm, configuration.tp)
    assert stage == 0 or reduced == gathered == 256 * 2**20 // 2
    assert (stages, interval) == ((2, 1) if configuration.pp == 2 else ("auto", 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("space", "values", "expected"),
    [
        ("torch", {"zero_stage": 3, "recompute": "full"}, ["FSDP", 8, True, False, 2, "True", True, None, "bf16"]),
        ("torch", {"zero_stage": 2, "dp": 4, "tp": 2}, ["FSDP", 8, True, False, 2, "False", False, None, "bf16"]),
        ("torch", {}, ["MULTI_GPU", 8, False, False, None, None, None, None, "bf16"]),
        ("deepspeed", {"zero_stage": 1, "zero_bucket_mb": 64}, ["DEEPSPEED", 8, False, True, None, None, None, "ds_config.json", None]),
    ],
)
def test_accelerate_itself_loads_the_file_and_would_launch_it(space, values, expected, problem_of, tmp_path) -> None:
    (tmp_path / "a.yaml").write_text(export("accelerate", problem_of(space), at(**values))["accelerate.yaml"])
    found = ask("accelerate", ACCELERATE, tmp_path / "a.yaml")
    assert isinstance(found, list)
    assert all(want is None or want == got for want, got in zip(expected, found, strict=True)), found


@pytest.mark.slow
def test_colossalais_plugins_have_these_arguments(problem_of) -> None:
    known = ask("colossalai", COLOSSALAI)
    problem = problem_of("colossalai")
    for values in ({"zero_stage": 2, "zero_bucket_mb": 24}, INTERLEAVED, {"zero_bucket_mb": 24}):
        assert colossalai.arguments(problem, at(**values)).keys() <= set(known["HybridParallelPlugin"])
    mixture = problem_of("colossalai", model="mixtral-8x7b")
    assert colossalai.arguments(mixture, at(ep=2)).keys() <= set(known["MoeHybridParallelPlugin"])


@pytest.mark.slow
def test_megatron_core_has_the_fields_that_megatron_bridge_sets(problem_of) -> None:
    known = ask("megatron.core", MEGATRON_CORE)
    values = megatron_bridge.values(problem_of("megatron"), at(**INTERLEAVED, overlap_zero_comm=True, dp_bucket_mb=256))
    for path in values:
        part, _, name = path.partition(".")
        assert part not in known or name == "seq_length" or name in known[part], path


@pytest.mark.parametrize("values", [INTERLEAVED, {"dp": 4, "tp": 2, "ep": 2, "zero_stage": 1, "recompute": "full"}])
def test_megatron_lm_documents_every_option(values, problem_of) -> None:
    problem = problem_of("megatron", model="mixtral-8x7b")
    chosen = at(**values, overlap_zero_comm=True, dp_bucket_mb=256)
    text = export("megatron", problem, chosen)["megatron_args.sh"]
    assert set(re.findall(r"--[\w-]+", text)) <= set(re.findall(r"--[\w-]+", MEGATRON_LM))


def test_torchtitan_documents_every_name(problem_of) -> None:
    for values in ({"dp": 4, "pp": 2, "schedule": "zb-v", "model_chunks": 2}, {"zero_stage": 3}):
        for path in torchtitan.values(problem_of("torch"), at(**values)):
            part, _, name = path.partition(".")
            assert part == "activation_checkpoint" or name in TORCHTITAN[part], path
