"""Read the fine-tuning benchmarks of foundation-model-stack/fms-acceleration: the Trainer of Transformers on A100-80GB.

Assumptions about all of its runs, with their reasons:

framework      PyTorch FSDP: FSDP1 with FULL_SHARD on several devices (the benchmark's `accelerate.yaml`), nothing sharded on one.
recompute      full: `gradient_checkpointing: True` in its `defaults.yaml`. Attention is flash: `use_flash_attn: True`.
optimizer      AdamW with weights and moments in bf16, no fp32 copy: `torch_dtype: bfloat16` without mixed precision. Memory agrees:
               10 bytes per weight at the peak of full fine-tuning (weights 2, gradients 2, moments 4, and 2 while AdamW computes), on one
               device and on two; 6 remain after the step on one device.
step time      the run's seconds over its 100 steps, the first included.
batch          one micro-batch per step, but for the mixtures of experts, which accumulate up to 128 samples. Tokens per second are of a
               device, so that tokens over samples give the sequence length: 2,048 for SantaCoder, and 4,096 (packed) for the others.
loss           torch's own, but for `foak`, whose cross-entropy is fused. Logits are converted to fp32 by the models of Transformers 4.45,
               except SantaCoder's (`modeling_gpt_bigcode.py`), where only autocast does, which the runs on quantised weights have.
residuals      of one device with `baseline-peft-bnb` in fp32: TRL calls PEFT's `prepare_model_for_kbit_training`, which casts norms and
               embeddings, unless the quantised weights are sharded; the accelerated runs do without.
norms          separate operations (`MistralRMSNorm`), but for `foak`, whose norm is fused, and SantaCoder, whose norm is torch's own.
kernels        `foak` (fused operators and kernels) and the like are tasks of their own, because no column of `predict_rows` states them.
out of memory  runs without throughput: nvidia-smi shows 77.7e3 MiB and more of 81,920 in each.
"""

import pandas as pd

from experiments.published.dimensions import dimensions_of
from oppa.bench.published.columns import ALLOCATED, DEVICE, OUT_OF_MEMORY, RAN, complete
from oppa.bench.published.files import FMS, FMS_MOE, read_file
from oppa.units import MIB

BF16_STATES = "adamw-bf16"
STEPS = 100
_MISTRAL = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 32000}
_LLAMA_70B = {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 32000}
_MIXTRAL = {**_MISTRAL, "experts": 8, "experts_per_token": 2, "expert_ffn": 14336}
_SANTACODER = {"layers": 24, "hidden": 2048, "heads": 16, "kv_heads": 1, "ffn": 8192, "vocab": 49280, "gated": False, "tied": True}
_GRANITE_3B = {"layers": 32, "hidden": 1536, "heads": 24, "kv_heads": 8, "ffn": 512, "vocab": 49155, "tied": True}
_DENSE = {"gated": True, "tied": False, "experts": 1, "experts_per_token": 1, "expert_ffn": 0, "shared_expert_ffn": 0}
_MODELS = {
    name: {**_DENSE, **dimensions}
    for name, dimensions in (
        ("bigcode/gpt_bigcode-santacoder", _SANTACODER),
        ("mistralai/Mistral-7B-v0.1", _MISTRAL),
        ("TheBloke/Mistral-7B-v0.1-GPTQ", _MISTRAL),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", _MIXTRAL),
        ("TheBloke/Mixtral-8x7B-Instruct-v0.1-GPTQ", _MIXTRAL),
        ("NousResearch/Llama-2-70b-hf", _LLAMA_70B),
        ("TheBloke/Llama-2-70B-GPTQ", _LLAMA_70B),
        ("ibm-granite/granite-3.0-3b-a800m-instruct", {**_GRANITE_3B, "experts": 40, "experts_per_token": 8, "expert_ffn": 512}),
        (
            "ibm-research/moe-7b-1b-active-shared-experts",
            {**_GRANITE_3B, "layers": 40, "experts": 62, "experts_per_token": 6, "expert_ffn": 512, "shared_expert_ffn": 1024},
        ),
    )
}
"""Dimensions of the models' public `config.json`."""


def fine_tuning_rows() -> pd.DataFrame:
    """Return full fine-tuning, LoRA, and LoRA on 4-bit weights as rows for `predict_rows`; the module states what is assumed.

    The three kinds are sources of their own. LoRA has `trained` = `lora`: rank 16 on the attention's matrices, all else frozen.
    Quantised weights (GPTQ, bitsandbytes) have `weights` = `4-bit`.
    """
    runs = read_file(FMS)
    config = runs["framework_config"]
    quantised = config.str.contains("bnb") | config.str.contains("gptq")
    lora = runs["peft_method"].eq("lora")
    seq_len = runs["model_name_or_path"].str.contains("santacoder").map({True: 2048, False: 4096})
    rows = _on_devices(runs, seq_len).assign(
        gbs=runs["per_device_train_batch_size"] * runs["num_gpus"],
        precision=runs["torch_dtype"].map({"bfloat16": "bf16", "float16": "fp16"}),
        kernels=config.where(config != "none", ""),
        loss=_operations(config).mask(
            runs["model_name_or_path"].str.contains("santacoder") & ~quantised & ~config.str.contains("foak"), "plain-16-bit"
        ),
        norms=_operations(config).mask(runs["model_name_or_path"].str.contains("santacoder"), "fused"),
        residuals=(config.eq("baseline-peft-bnb") & (runs["num_gpus"] == 1)).map({True: "32-bit", False: "16-bit"}),
        trained=lora.map({True: "lora", False: "all"}),
        weights=quantised.map({True: "4-bit", False: "16-bit"}),
        status=runs["train_runtime"].notna().map({True: RAN, False: OUT_OF_MEMORY}),
        memory_bytes=runs["mem_peak_torch_mem_alloc_in_bytes"],
        memory_kind=ALLOCATED,
    )
    kinds = {"fms_a100": ~lora, "fms_a100_lora": lora & ~quantised, "fms_a100_4bit": quantised}
    task = ("model", "gpus", "seq_len", "kernels")
    return pd.concat([complete(rows[chosen], source=name, task=task) for name, chosen in kinds.items()]).sort_index()


def expert_fine_tuning_rows() -> pd.DataFrame:
    """Return the fine-tuning of mixtures of experts as rows for `predict_rows`; the module states what is assumed.

    Assumptions, with their reasons:
        model        of moe-7b-1b-active-shared-experts, the published figures of its successor Granite 4.0 Tiny: 62 experts, 6 of them
                     active, one shared. Its public files hold 25.49e9 bytes: the 6.371e9 weights that follow, in fp32.
        left out     Granite 4.0 Tiny itself: most of its layers are Mamba's.
        parallelism  `epN` shards experts over N devices and replicates them over the rest; FSDP shards all other weights over all devices.
                     Without it (`none`), FSDP shards the experts too, and a loop of Python indexes their stacked weights
                     (`GraniteMoeParallelExperts` of Transformers 4.45; its version 5 does so with `experts_implementation="eager"`).
        length       the mean over the run, as the tokens per second give it: batches are padded to their longest sample, or not padded.
        memory       only Mixtral's, where one sample is a micro-batch: the others peak at their longest batch, which is unknown.
    """
    runs = read_file(FMS_MOE)
    runs = runs[runs["model_name_or_path"].isin(list(_MODELS))].reset_index(drop=True)
    config = runs["framework_config"]
    per_sample = runs["train_tokens_per_second"] * runs["num_gpus"] / runs["train_samples_per_second"]
    rows = _on_devices(runs, per_sample.round().astype(int)).assign(
        gbs=runs["per_device_train_batch_size"] * runs["num_gpus"] * runs["gradient_accumulation_steps"],
        precision="bf16",
        ep=config.str.extract(r"ep(\d+)", expand=False).fillna("1").astype(int),
        kernels=config.str.replace(r"-ep\d+", "", regex=True),
        expert_products=config.eq("none").map({True: "loop", False: "grouped"}),
        loss=_operations(config),
        norms=_operations(config),
        status=RAN,
        memory_bytes=(runs["mem_nvidia_mem_reserved"] * MIB).where(runs["per_device_train_batch_size"] == 1),
        memory_kind=DEVICE,
    )
    return complete(rows, source="fms_a100_moe", task=("model", "gpus", "kernels"))


def _operations(config: pd.Series) -> pd.Series:
    """Return the columns `loss` and `norms`, which are alike, for options of the framework."""
    return config.str.contains("foak").map({True: "fused", False: "plain"})


def _on_devices(runs: pd.DataFrame, seq_len: pd.Series) -> pd.DataFrame:
    """Return the columns that are the same for all kinds of runs."""
    several = runs["num_gpus"] > 1
    return dimensions_of(runs["model_name_or_path"], _MODELS).assign(
        model=runs["model_name_or_path"],
        seq_len=seq_len,
        device="A100-80GB",
        gpus=runs["num_gpus"],
        gpus_per_node=8,
        mbs=runs["per_device_train_batch_size"],
        dp=runs["num_gpus"],
        tp=1,
        pp=1,
        zero=several.map({True: 3, False: 0}),
        framework="fsdp",
        recompute="full",
        optimizer=BF16_STATES,
        step_time_s=runs["train_runtime"] / STEPS,
    )
