"""Write Megatron-LM's options for attention and mixtures of experts, and read what such options state of a model.

Names: megatron/training/arguments.py, and the fields of TransformerConfig, which are options as well.
"""

from collections.abc import Mapping, Sequence

from oppa.errors import InputError
from oppa.problem.bounded_text import whole_number
from oppa.problem.model import OF_WINDOWS, Model
from oppa.tuning.launch_line.layer_pattern import dense_layers, full_layers

HEAD, LATENTS = "--kv-channels", "--multi-latent-attention"
EXPERT, SHARED, LAYERS = "--moe-ffn-hidden-size", "--moe-shared-expert-intermediate-size", "--moe-layer-freq"
WINDOW, SKIPPED = "--window-size", "--window-attn-skip-freq"
KEYS_RANK, QUERIES_RANK = "--kv-lora-rank", "--q-lora-rank"
ROTATED, PLAIN, VALUES = "--qk-pos-emb-head-dim", "--qk-head-dim", "--v-head-dim"
WIDTHS = (ROTATED, PLAIN, VALUES)
OF_LATENTS = (LATENTS, "--qk-layernorm", KEYS_RANK, QUERIES_RANK, *WIDTHS)
_USUAL = {KEYS_RANK: 32, ROTATED: 64, PLAIN: 128, VALUES: 128}
"""Numbers of Megatron-LM for options of latent attention that are left out."""


def options(model: Model) -> list[str]:
    """Return the options for attention and experts; raises InputError for values of another width than keys without latents."""
    if model.v_head_dim not in (0, model.head_dim) and not model.kv_lora_rank:
        message = f"Megatron-LM cannot express `v_head_dim = {model.v_head_dim}` without latents, as a head of keys has {model.head_dim}"
        raise InputError(message, hint="export a model with `kv_lora_rank`, or with values of the width of keys")
    return [*_attention(model), *_window(model), *(_experts(model) if model.experts > 1 else [])]


def _attention(model: Model) -> list[str]:
    grouped = [f"--group-query-attention --num-query-groups {model.kv_heads}"] if model.kv_heads < model.heads else []
    if not model.kv_lora_rank:
        return [*grouped, *([f"{HEAD} {model.head_width}"] if model.head_width else [])]
    plain, values = model.head_dim - model.qk_rope_head_dim, model.v_head_dim or model.head_dim
    found = [f"{LATENTS} --qk-layernorm {KEYS_RANK} {model.kv_lora_rank}"]  # latents have norms
    found += [f"{QUERIES_RANK} {model.q_lora_rank}"] if model.q_lora_rank else []
    return [*grouped, *found, f"{PLAIN} {plain} {ROTATED} {model.qk_rope_head_dim} {VALUES} {values}"]


def _window(model: Model) -> list[str]:
    """Return the options for sliding windows, which count the tokens before each one. Layers without one are evenly spaced, or last."""
    full, layers = model.full_attention_layers, model.layers
    if not model.sliding_window or full == layers:
        return []
    spaced = [] if not full else [f"{SKIPPED} {layers // full}"] if layers % full == 0 else [f"{SKIPPED} ([1]*{layers - full}+[0]*{full})"]
    return [f"{WINDOW} {model.sliding_window - 1},0", *spaced]


def _experts(model: Model) -> list[str]:
    found = [f"--num-experts {model.experts} --moe-router-topk {model.experts_per_token}"]
    found += [f"{EXPERT} {model.expert_ffn}"] if model.expert_ffn else []
    found += [f"{SHARED} {model.shared_expert_ffn}"] if model.shared_expert_ffn else []
    dense = model.dense_layers  # a shell keeps the pattern as it is, unless a file's name begins so
    return [*found, *([f"{LAYERS} ([0]*{dense}+[1]*{model.layers - dense})"] if dense else [])]


def stated(given: Mapping[str, Sequence[str]], found: Mapping[str, int]) -> dict[str, int]:
    """Return what options state of attention and experts, by the fields of Model, with 0 for what is as usual.

    Args:
        given: Values of each option.
        found: Other dimensions, at least layers, hidden and heads.
    """

    def number(option: str) -> int:
        size = whole_number(next(iter(given.get(option, ())), ""))
        return _USUAL.get(option, 0) if size is None else size

    mixed, own = found.get("experts", 1) > 1, number(HEAD)
    heads = {"head_width": 0 if own * found["heads"] == found["hidden"] else own}
    latents = {
        "head_width": number(PLAIN) + number(ROTATED),
        "kv_lora_rank": number(KEYS_RANK),
        "q_lora_rank": number(QUERIES_RANK),
        "qk_rope_head_dim": number(ROTATED),
        "v_head_dim": number(VALUES),
    }
    experts = {"expert_ffn": number(EXPERT), "shared_expert_ffn": number(SHARED), "dense_layers": first_dense(given, found) or 0}
    return {
        **dict.fromkeys((*latents, *experts), 0),
        **(latents if LATENTS in given else heads),
        **dict(zip(OF_WINDOWS, windows(given, found) or (0, 0), strict=True)),
        **(experts if mixed else {}),
    }


def first_dense(given: Mapping[str, Sequence[str]], found: Mapping[str, int]) -> int | None:
    """Return how many layers before the first with experts are dense; None for another pattern of layers."""
    pattern = next(iter(given.get(LAYERS, ())), "")
    return dense_layers(pattern, found["layers"]) if pattern and found.get("experts", 1) > 1 else 0


def windows(given: Mapping[str, Sequence[str]], found: Mapping[str, int]) -> tuple[int, int] | None:
    """Return the tokens of a sliding window, 0 without one, and the number of layers that have none; None if they cannot be read.

    `--window-size` states tokens before and after each one, as `127,0` or `(127,0)`, and -1 for all of them.
    """
    stated, skipped = (next(iter(given.get(option, ())), "") for option in (WINDOW, SKIPPED))
    if not stated:
        return 0, 0
    before, _, after = stated.strip("()").partition(",")
    sizes = [-1 if each.strip() == "-1" else whole_number(each.strip()) for each in (before, after)]
    full = full_layers(skipped, found["layers"]) if skipped else 0
    if sizes[0] is None or sizes[1] is None or full is None:
        return None
    return (0, 0) if sizes[0] < 0 or full == found["layers"] else (sizes[0] + max(sizes[1], 0) + 1, full)
