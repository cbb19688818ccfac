"""Launch lines that are typed in practice, and the files that they name."""

MEGATRON = (
    "srun -N64 --ntasks-per-node=8 --gpus-per-node=8 --container-image=mcore.sqsh --container-mounts=/lustre --cpu-bind=none "
    "python pretrain_gpt.py --tensor-model-parallel-size 8 --sequence-parallel --pipeline-model-parallel-size 4 --num-layers 96 "
    "--hidden-size 12288 "
    "--num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 1536 --bf16 "
    "--use-distributed-optimizer --train-iters 1000 --save /lustre/run7"
)
RUN_TRAIN = """
NGPU=${NGPU:-"8"}
CONFIG_FILE=${CONFIG_FILE:-"debug_model.toml"}
torchrun --nproc_per_node=${NGPU} --rdzv_backend c10d --rdzv_endpoint="localhost:0" \\
-m torchtitan.train --job.config_file ${CONFIG_FILE} "$@"
"""
LLAMA = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
tensor_parallel_degree = 1
[activation_checkpoint]
mode = "selective"
"""
FSDP = """
distributed_type: FSDP
mixed_precision: bf16
num_processes: 4
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_activation_checkpointing: false
"""
TRAINER = (
    "torchrun --nproc-per-node 8 run_clm.py --deepspeed ds.json --per_device_train_batch_size 4 --gradient_accumulation_steps 4 "
    "--output_dir out"
)
