"""Launch lines and files of programs whose settings are keys, and what a trial and the winner have of them."""

from oppa.tuning.formats.space_words import values_outside_trials
from oppa.tuning.launch_line.changed_line import changed_line
from oppa.tuning.launch_line.line_job import LineJob

NEMO = (
    "python megatron_gpt_pretraining.py trainer.devices=8 trainer.num_nodes=1 trainer.precision=bf16 model.micro_batch_size=2 "
    "model.global_batch_size=64 model.tensor_model_parallel_size=2 model.pipeline_model_parallel_size=2"
)
NEMO_MODEL = (
    " model.num_layers=32 model.hidden_size=4096 model.num_attention_heads=32 model.num_query_groups=8 model.ffn_hidden_size=14336"
    " model.encoder_seq_length=4096 ++model.activation=fast-swiglu"
)
NEMO_RUN = "nemo llm pretrain --factory llama3_8b trainer.devices=8 data.global_batch_size=64 data.micro_batch_size=1"
SWIFT = (
    "torchrun --nproc-per-node 8 -m swift.cli._megatron.sft --model Qwen/Qwen2.5-7B --tensor_model_parallel_size 2 "
    "--sequence_parallel true --micro_batch_size 4 --global_batch_size=32 --recompute_granularity full "
    "--recompute_method uniform --recompute_num_layers 1 "
    "--save_safetensors true --output_dir out"
)
AXOLOTL = "accelerate launch --num_processes 8 -m axolotl.cli.train lora.yml"
LORA = """
base_model: org/model
datasets:
  - path: org/alpaca
adapter: qlora
load_in_4bit: true
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 4
gradient_checkpointing: true
optimizer: adamw_bnb_8bit
output_dir: ./outputs/out
dataset_prepared_path: last_run_prepared
bf16: auto
"""
FOUNDRY = """
variables:
  max_seq_len: 2048
max_seq_len: ${variables.max_seq_len}
model: {name: mpt_causal_lm, d_model: 768, n_heads: 12, n_layers: 12, expansion_ratio: 4, vocab_size: 50368}
global_train_batch_size: 256
device_train_microbatch_size: 16
precision: amp_bf16
fsdp_config: {sharding_strategy: FULL_SHARD, activation_checkpointing: false}
save_folder: ./run/checkpoints
"""
TUNE = "batch_size: 2\ngradient_accumulation_steps: 4\nenable_activation_checkpointing: true\ndtype: bf16\noutput_dir: /tmp/out\n"
OF_TUNE = "batch_size=4 gradient_accumulation_steps=2 tensor_parallel_dim=1 context_parallel_dim=1"
NANOTRON = """
parallelism: {dp: 4, tp: 2, pp: 1}
tokens: {micro_batch_size: 3, batch_accumulation_per_replica: 2, sequence_length: 1024}
optimizer: {zero_stage: 0}
model:
  dtype: bfloat16
  model_config:
    {num_hidden_layers: 8, hidden_size: 512, num_attention_heads: 8, num_key_value_heads: 4, intermediate_size: 1024, vocab_size: 32000}
checkpoints: {checkpoints_path: checkpoints}
"""
LITGPT = "train: {micro_batch_size: 4, global_batch_size: 64}\nprecision: bf16-mixed\nout_dir: out/pretrain\n"


def changed(made: LineJob, **values) -> tuple[str, dict[str, object], list[str]]:
    """The winner's line, and a trial's file and words, for the baseline with other values."""
    each = next(
        each
        for each in made.problem.candidates()
        if all(each[name] == value for name, value in values.items())
        and all(each[name] == made.problem.baseline[name] for name in each.names if name not in {*values, "dp"})
    )
    line, given = made.problem.launch_line(each), values_outside_trials(made.problem, each)
    files = {key: value for file in line.files for key, value in file.rewritten(given).items()}
    return " ".join(changed_line(made, each).line), files, line.words(given, {"config": "COPY"})
