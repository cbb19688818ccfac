"""Read a model's dimensions from the `config.json` of Hugging Face Transformers, without the package.

The first name of `_NAMES` that a file has applies, else the default in `TYPES`. Other types are assumed to be decoders with SwiGLU and
RMSNorm, with a warning.
"""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oppa.errors import JobError
from oppa.problem.bounded_text import parse_json, read_text
from oppa.problem.bounds import LARGEST, MOST_LAYERS
from oppa.problem.declaration import spell
from oppa.problem.model import OF_EXPERTS, OF_LATENTS, OF_WINDOWS
from oppa.problem.transformers_types import TWO_STACKS, TYPES, dense_layers, unified, windows

_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "multi_query_group_num", "num_kv_heads", "kv_n_heads"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim"),
    "vocab": ("vocab_size",),
    "head_width": ("head_dim",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "experts_per_token": ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_top_k"),
    "expert_ffn": ("moe_intermediate_size",),
    "shared_expert_ffn": ("shared_expert_intermediate_size",),
    **{name: (name,) for name in OF_LATENTS},
}
_EPSILONS = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps")
_ACTIVATION_KEYS = ("activation_function", "hidden_act", "hidden_activation", "activation")
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
_SHARED = ("n_shared_experts", "moe_num_shared_experts")
_BIASES = ("attention_bias", "use_qkv_bias", "use_bias")
_POSITIONS = ("max_position_embeddings", "n_positions")
_ASSUMED = (
    "its dimensions are assumed to be those of a decoder with SwiGLU in equal layers; "
    "if that is wrong, state them in `[model]` in place of `config`"
)
_log = logging.getLogger(__name__)
_HINT = "name the config.json that `save_pretrained` wrote, relative to the job file"


def with_config(given: Mapping[str, Any], path: Path, *, preset: str | None = None) -> dict[str, Any]:
    """Return the dimensions of a `config.json`, with those of the job file that it does not state.

    Raises:
        JobError: the file cannot be read, the job file contradicts it or names a preset, or `seq_len` is missing.
    """
    if preset is not None:
        raise JobError(f'`preset = "{preset}"` and `config = "{given["config"]}"` both state the model', hint="remove one of them")
    stated = read_config(path)
    for name in stated.keys() & given.keys():
        if stated[name] != given[name]:
            message = f"`{name} = {spell(given[name])}` in `[model]`, but `{given['config']}` states {spell(stated[name])}"
            raise JobError(message, hint=f"remove `{name}`, or change it in `{given['config']}`")
    if "seq_len" not in given:
        raise JobError("`[model]` has a `config`, but no `seq_len`", hint="add the tokens of a training sequence, such as `seq_len = 2048`")
    if stated.get(OF_WINDOWS[0], 0) >= given["seq_len"]:
        stated = {name: value for name, value in stated.items() if name not in OF_WINDOWS}  # a window that holds every sequence
    return {**stated, **given, "config": str(path)}


def read_config(path: Path) -> dict[str, Any]:
    """Return the dimensions that a `config.json` states, by their names in `[model]`, without `seq_len`.

    Raises:
        JobError: the file cannot be read, is no configuration of a model, or of an encoder with a decoder, or a dimension is no positive
            whole number.
    """
    values = parse_json(read_text(path, error=JobError, hint=_HINT), source=f"`{path}`", hint=_HINT)
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise JobError(f"`{path}` has no `model_type`, so it is no configuration of Transformers", hint=_HINT)
    text = values.get("text_config")
    return _dimensions(text if isinstance(text, dict) else values, values["model_type"], path)


def _dimensions(stated: Mapping[str, Any], outer: str, path: Path) -> dict[str, Any]:
    kind = str(stated.get("model_type", outer))
    if kind in TWO_STACKS or stated.get("is_encoder_decoder") is True:
        message = f"`{path}` is of `{kind}`, an encoder with a decoder, which `[model]` cannot describe"
        raise JobError(message, hint="remove `[model]`, and trials alone decide; or state the dimensions of a decoder that is as large")
    if kind not in TYPES:
        _log.warning("`%s` is of the unknown type `%s`: %s", path, kind, _ASSUMED)
    values, usual = unified(stated, kind), TYPES.get(kind, {})
    found = {"name": outer, **usual}
    for name, keys in _NAMES.items():
        key = next((key for key in keys if values.get(key) is not None), "")
        if key:
            found[name] = _whole_number(values[key], key, path)
    if isinstance(values.get("tie_word_embeddings"), bool):
        found["tied"] = values["tie_word_embeddings"]
    if "biases" not in usual and any(values.get(key) is True for key in _BIASES):
        found["biases" if values.get("mlp_bias") is True or values.get("use_bias") is True else "qkv_bias"] = True
    if "token_types" in usual and values.get("type_vocab_size") is not None:
        found["token_types"] = _whole_number(values["type_vocab_size"], "type_vocab_size", path)
    found |= windows(values, kind, found.get("layers", 0)) | _computed(values, found, path)
    if "learned_positions" in usual:
        longest = next((values[key] for key in _POSITIONS if values.get(key) is not None), 1024)
        found["learned_positions"] = _whole_number(longest, _POSITIONS[0], path) + usual["learned_positions"]
    return _consistent(found, values)


def _computed(values: Mapping[str, Any], found: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return what a configuration states about norms, rotation and activation, with Transformers' defaults where it states nothing."""
    layer_norm, rotation = found.get("norm") == "layer", values.get("rope_parameters")
    epsilon = next((values[key] for key in _EPSILONS if values.get(key) is not None), 1e-5 if layer_norm else 1e-6)
    stated = {"norm_eps": epsilon}
    if "learned_positions" not in found:
        stated["rope_theta"] = values.get("rope_theta") or (rotation.get("rope_theta") if isinstance(rotation, dict) else None) or 10_000.0
    for name, value in stated.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise JobError(f"`{name} = {value}` in `{path}` is no positive number", hint="write a number, as Transformers does")
    activation = next((values[key] for key in _ACTIVATION_KEYS if values.get(key) is not None), "gelu_new" if layer_norm else "silu")
    known = _ACTIVATIONS.get(activation) if isinstance(activation, str) and not found.get("gated", True) else None
    return {**{name: float(value) for name, value in stated.items()}, **({"activation": known} if known else {})}


def _consistent(found: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dimensions without those that only repeat others, or that have no meaning without experts."""
    hidden, heads = found.get("hidden"), found.get("heads")
    if hidden and "ffn" not in found:
        found["ffn"] = 4 * hidden
    if "kv_lora_rank" in found and isinstance(width := values.get("qk_nope_head_dim"), int):
        found["head_width"] = width + found.get("qk_rope_head_dim", 0)  # `head_dim` is the rotated part in some files
    if heads and found.get("head_width", 0) * heads == hidden:
        found.pop("head_width", None)
    if found.get("experts", 1) <= 1:
        for name in ("experts", "experts_per_token", *OF_EXPERTS):
            found.pop(name, None)
    else:
        shared = next((number for key in _SHARED if isinstance(number := values.get(key), int) and number > 0), 0)
        found.setdefault("shared_expert_ffn", shared * found.get("expert_ffn", found.get("ffn", 0)))
        found["dense_layers"] = dense_layers(values, found.get("layers", 0))
    return {name: value for name, value in found.items() if value != 0 or isinstance(value, bool)}


def _whole_number(value: Any, key: str, path: Path) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= (MOST_LAYERS if key in _NAMES["layers"] else LARGEST):
        raise JobError(f"`{key} = {value}` in `{path}` is no dimension", hint="write a whole number, as Transformers does")
    return value
