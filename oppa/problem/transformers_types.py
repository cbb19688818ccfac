"""List the types of models of Hugging Face Transformers whose `config.json` is read exactly, and what their files leave out.

Types name the same dimension differently, nest some of them, or have layers of two kinds. `unified` gives them common names.
"""

from collections.abc import Mapping
from typing import Any

_OLD: dict[str, Any] = {"gated": False, "biases": True, "norm": "layer", "tied": True}
_ENCODER: dict[str, Any] = {**_OLD, "causal": False, "learned_positions": 0, "token_types": 2}
_PLAIN: dict[str, Any] = {"gated": False, "norm": "layer", "tied": True}
_GEMMA: dict[str, Any] = {"tied": True, "head_width": 256}
_LIKE_LLAMA = (
    *("deepseek_v2", "deepseek_v3", "glm4_moe", "granite", "granitemoe", "llama", "mistral", "mixtral", "olmo2", "olmoe"),
    *("phi3", "qwen3_moe"),
)
TYPES: dict[str, dict[str, Any]] = {
    **{name: {} for name in _LIKE_LLAMA},
    **dict.fromkeys(("bert", "camembert", "roberta", "xlm-roberta"), _ENCODER),
    "bloom": _OLD,
    "codegen": {**_OLD, "tied": False},
    "cohere": {"norm": "layer", "tied": True},
    "cohere2": {"norm": "layer", "tied": True},
    "dbrx": {"norm": "layer"},
    "ernie4_5": {"tied": True, "head_width": 128},
    "ernie4_5_moe": {"tied": True},
    "falcon": _PLAIN,
    "gemma": _GEMMA,
    "gemma2": _GEMMA,
    "gemma3_text": {**_GEMMA, "heads": 8, "kv_heads": 4, "vocab": 262208},
    "glm": {"head_width": 128},
    "glm4": {"head_width": 128},
    "gpt2": {**_OLD, "learned_positions": 0},
    "gpt_bigcode": {**_OLD, "learned_positions": 0},
    "gpt_neox": {**_OLD, "tied": False},
    "gpt_oss": {"head_width": 64},
    "gptj": {**_OLD, "tied": False},
    "llama4_text": {"head_width": 128},
    "mpt": _PLAIN,
    "nemotron": {**_PLAIN, "tied": False},
    "olmo": {"norm": "layer"},
    "opt": {**_OLD, "learned_positions": 2},
    "phi": {**_OLD, "tied": False},
    "phimoe": {"norm": "layer"},
    "qwen2": {"qkv_bias": True},
    "qwen2_moe": {"qkv_bias": True},
    "qwen3": {"head_width": 128},
    "seed_oss": {"head_width": 128},
    "smollm3": {"tied": True},
    "stablelm": {"norm": "layer"},
    "starcoder2": _OLD,
}
"""Facts of types that are not in their files. `learned_positions` are added to the longest sequence.

Transformers' own modules have as many parameters, within 1%.
"""
TWO_STACKS = frozenset(
    (
        *("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "encoder-decoder", "fsmt", "led", "longt5", "m2m_100", "marian"),
        *("mbart", "mt5", "mvp", "nllb-moe", "pegasus", "pegasus_x", "plbart", "prophetnet", "switch_transformers", "t5", "t5gemma"),
        *("umt5", "whisper"),
    )
)
"""Types of an encoder with a decoder."""
_FULL_EVERY = {"cohere2": 4, "gemma2": 2, "gemma3_text": 6, "gpt_oss": 2}
"""Types one of whose so many layers attends to all tokens, unless a file states it."""
_STEPS = ("interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_interval")


def unified(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a configuration by the usual keys, if its type has keys of its own."""
    match name:
        case "dbrx":
            tables = (values.get("attn_config"), values.get("ffn_config"))
            return {**values, **{key: value for table in tables if isinstance(table, dict) for key, value in table.items()}}
        case "falcon":
            grouped = values.get("num_kv_heads") if values.get("new_decoder_architecture") else None
            shared = 1 if values.get("multi_query", True) and not values.get("new_decoder_architecture") else None
            return {**values, "num_kv_heads": grouped or shared, "use_bias": values.get("bias")}
        case "gpt_bigcode":
            return {**values, "num_key_value_heads": 1 if values.get("multi_query", True) else None}
        case "llama4_text":
            width = values.get("intermediate_size")
            experts = {"moe_intermediate_size": width, "shared_expert_intermediate_size": width}
            return {**values, **experts, "intermediate_size": values.get("intermediate_size_mlp")}
        case "mpt":
            return {**values, "use_bias": values.get("no_bias") is False}
    return dict(values)


def dense_layers(values: Mapping[str, Any], layers: int) -> int:
    """Return how many of the layers of a mixture of experts have one network in place of experts."""
    if isinstance(kinds := values.get("mlp_layer_types"), list):
        return kinds.count("dense")
    if isinstance(listed := values.get("moe_layers"), list):
        return layers - len(listed)
    step = next((size for key in _STEPS if (size := _count(values, key))), 1)
    first = _count(values, "first_k_dense_replace") or _count(values, "moe_layer_start_index")
    last = _count(values, "moe_layer_end_index") or layers - 1
    alone = values.get("mlp_only_layers")
    sparse = {*range(step - 1, layers, step)} - {*range(first)} - {*range(last + 1, layers)}
    return layers - len(sparse.difference(alone if isinstance(alone, list) else ()))


def windows(values: Mapping[str, Any], name: str, layers: int) -> dict[str, int]:
    """Return the window of attention, and the number of layers without it; nothing if no layer has one."""
    window = _count(values, "sliding_window")
    if not window or not values.get("use_sliding_window", not name.startswith("qwen")):
        return {}
    if isinstance(kinds := values.get("layer_types"), list):
        full = len(kinds) - kinds.count("sliding_attention")
    else:
        every = _count(values, "sliding_window_pattern") or _FULL_EVERY.get(name, 0)
        full = layers // every if every else _count(values, "max_window_layers")
    return {"sliding_window": window, "full_attention_layers": full} if full < layers else {}


def _count(values: Mapping[str, Any], key: str) -> int:
    """Return a positive number, such as that of some layers; 0 if the configuration states none."""
    value = values.get(key)
    return value if isinstance(value, int) and value is not True and value > 0 else 0
