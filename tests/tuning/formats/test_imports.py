"""A file as people write it is understood, named as ignored, or refused."""

import json

import pytest

from oppa.errors import InputError
from oppa.problem.baseline import at_rest, complete
from oppa.tuning.formats import FORMATS

DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": "auto",
    "train_batch_size": 64,
    "gradient_clipping": 1.0,
    "steps_per_print": 10,
    "fp16": {"enabled": True},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": 2e8, "offload_optimizer": {"device": "cpu"}},
}
MEGATRON = """
#!/bin/bash
GPUS=8; TP=2
PP_SIZE=${PP_SIZE:-2}
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP   # within a host
    --pipeline-model-parallel-size ${PP_SIZE}
    --num-layers-per-virtual-pipeline-stage 2
    --sequence-parallel
)
TRAIN="--micro-batch-size 4 --global-batch-size 64
    --use-distributed-optimizer --overlap-grad-reduce"
torchrun --nproc_per_node $GPUS pretrain_gpt.py ${MODEL_PARALLEL_ARGS[@]} $TRAIN --recompute-activations --seq-length 1024
"""
LAID_OUT = """
pretrain_gpt.py --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout '{layout}' --micro-batch-size 4 --global-batch-size 64
"""
FSDP1 = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP, fsdp_offload_params: true, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}
num_processes: 8
"""


def test_a_deepspeed_file_as_transformers_users_write_it(problem_of) -> None:
    problem = problem_of("deepspeed")
    reading = FORMATS["deepspeed"].parse(problem, {"ds.json": json.dumps(DEEPSPEED)})
    assert reading.ignored == (
        "gradient_clipping = 1.0",
        'fp16 = {"enabled": true}',
        'zero_optimization.offload_optimizer.device = "cpu"',
    )
    meant = at_rest(problem.space, complete(problem.space, reading.settings))
    assert (meant.dp, meant.zero_stage, meant.micro_batch, meant.overlap_zero_comm) == (8, 3, 4, True)
    assert meant.zero_bucket_mb == 512  # 2e8 elements of bf16 are 381 MiB


def test_the_micro_batch_follows_from_the_batch_and_the_accumulation(problem_of) -> None:
    values = {"train_batch_size": 64, "gradient_accumulation_steps": 4}
    assert FORMATS["deepspeed"].parse(problem_of("deepspeed"), {"ds.json": json.dumps(values)}).settings["micro_batch"] == 2


def test_megatron_options_are_found_in_a_script_with_its_variables(problem_of) -> None:
    reading = FORMATS["megatron"].parse(problem_of("megatron"), {"train.sh": MEGATRON})
    expected = {"tp": 2, "pp": 2, "model_chunks": 2, "schedule": "interleaved", "micro_batch": 4, "global_batch": 64, "zero_stage": 1}
    expected |= {"overlap_zero_comm": True, "overlap_zero_allgather": False, "overlap_p2p": True, "recompute": "selective"}
    assert reading.settings == expected and not reading.ignored


@pytest.mark.parametrize("option", ["--checkpoint-activations", "--activations-checkpoint-method uniform"])
def test_an_option_of_early_megatron_recomputes_whole_layers(option, problem_of) -> None:
    assert FORMATS["megatron"].parse(problem_of("megatron"), {"train.sh": f"pretrain_gpt.py {option}"}).settings["recompute"] == "full"


def test_a_variable_from_elsewhere_is_an_error_that_names_the_option(problem_of) -> None:
    with pytest.raises(InputError, match=r"--micro-batch-size \$MBS"):
        FORMATS["megatron"].parse(problem_of("megatron"), {"train.sh": "pretrain_gpt.py --micro-batch-size $MBS"})


@pytest.mark.parametrize(
    ("strategy", "stage", "ignored"),
    [
        ("SHARD_GRAD_OP", 2, ()),
        ("HYBRID_SHARD", 3, ("fsdp_config.fsdp_sharding_strategy = HYBRID_SHARD",)),
        ("5", 2, ("fsdp_config.fsdp_sharding_strategy = 5",)),
    ],
)
def test_fsdp_of_the_first_version_is_understood(strategy, stage, ignored, problem_of) -> None:
    text = f"{FSDP1.replace('SHARD_GRAD_OP', strategy)}num_machines: 2\n"
    reading = FORMATS["accelerate"].parse(problem_of("torch"), {"default_config.yaml": text})
    assert reading.settings["zero_stage"] == stage and "micro_batch" not in reading.settings
    assert reading.ignored == (*ignored, "fsdp_config.fsdp_offload_params = True")


def test_a_file_that_names_another_says_to_import_that(problem_of) -> None:
    text = "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: conf/ds.json}\n"
    with pytest.raises(InputError, match=r"conf/ds\.json") as caught:
        FORMATS["accelerate"].parse(problem_of("deepspeed"), {"a.yaml": text})
    assert caught.value.hint == "run `oppa import conf/ds.json --from deepspeed`"


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("deepspeed", "ds.json", "{"),
        ("deepspeed", "ds.yaml", "zero: 1"),
        ("accelerate", "a.yaml", "- : ["),
        ("accelerate", "a.yaml", "just words"),
        ("colossalai", "plugin.py", "def f(:"),
        ("colossalai", "plugin.py", "x = 1"),
        ("megatron", "a.sh", 'echo "never closed'),
        ("torchtitan", "a.toml", ""),
    ],
)
def test_what_cannot_be_read_is_an_error_with_a_hint(name, file, text, problem_of) -> None:
    with pytest.raises(InputError) as caught:
        FORMATS[name].parse(problem_of("torch"), {file: text})
    assert caught.value.hint


def test_source_is_read_and_never_run(problem_of, tmp_path) -> None:
    mark = tmp_path / "mark"
    text = f"open({str(mark)!r}, 'w')\nplugin = HybridParallelPlugin(tp_size=2, pp_size=1, zero_stage=open({str(mark)!r}, 'w'))\n"
    reading = FORMATS["colossalai"].parse(problem_of("colossalai"), {"plugin.py": text})
    assert reading.settings["tp"] == 2 and not mark.exists()


def test_a_layout_of_stages_is_recognised(problem_of) -> None:
    problem = problem_of("torch")
    layers = problem.model.layers
    read = {}
    for layout in (f"Et*{layers // 2}|t*{layers // 2}L", f"Et|t*{layers - 1}|L,", f"Et|(t|)*2t*{layers - 3}L"):
        script = LAID_OUT.format(layout=layout)
        try:
            read[layout] = FORMATS["megatron"].parse(problem, {"pretrain.sh": script}).settings
        except InputError as error:
            read[layout] = error
    evenly, odd, interleaved = read.values()
    assert evenly["stage_layout"] == "even" and evenly["model_chunks"] == 1
    assert isinstance(odd, InputError) and "3 stages" in odd.message
    assert interleaved["stage_layout"] == f"Et|t|t|t*{layers - 3}L" and interleaved["model_chunks"] == 2
