"""Express a model as Hugging Face Transformers does: its `config.json`, and the names and shapes of its weights.

Three architectures compute what this core can compute: Llama, Qwen2 (Llama with biases of query, key and value) and GPT-2. Others are
refused, with the reason.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from oppa.errors import InputError
from oppa.problem.declaration import spell
from oppa.problem.model import Model
from oppa.problem.training import Training
from oppa.problem.transformers_config import read_config
from oppa.regular_file import open_regular, read_json
from oppa.training.model.weights import Pretrained

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_READ = ("llama", "qwen2", "gpt2")
"""Types of models whose weights can be read."""
_UNUSED = ("lm_head.weight", ".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
"""Ends of names in older files that are no weights; `lm_head.weight` is one unless it is tied."""
_ELSEWHERE = ("name", "seq_len", "entry_point", "config", "activation")
"""Fields of a model that its weights do not depend on; an activation counts where the network has no gate."""


@dataclasses.dataclass(frozen=True, slots=True)
class Foreign:
    """Describes a tensor of a file: this core's tensors below each other, and then transposed if it multiplies from the right."""

    parts: tuple[str, ...]
    transposed: bool = False

    def whole(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the tensor as the file has it."""
        whole = torch.cat([tensors[part] for part in self.parts]) if len(self.parts) > 1 else tensors[self.parts[0]]
        return whole.T.contiguous() if self.transposed else whole.contiguous()


def config_of(model: Model) -> dict[str, Any]:
    """Return the `config.json` of a model.

    Raises:
        InputError: names the first choice of the model that no architecture has.
    """
    gpt2 = bool(model.learned_positions)
    _require_expressible(model, gpt2=gpt2)
    shared = {"vocab_size": model.vocab, "tie_word_embeddings": model.tied, "dtype": "float32"}
    if gpt2:
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            **shared,
            "n_positions": model.learned_positions,
            "n_embd": model.hidden,
            "n_layer": model.layers,
            "n_head": model.heads,
            "n_inner": model.ffn,
            "activation_function": {"gelu": "gelu", "gelu_tanh": "gelu_new"}[model.activation],
            "layer_norm_epsilon": model.norm_eps,
            **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
        }
    return {
        "architectures": ["Qwen2ForCausalLM" if model.qkv_bias else "LlamaForCausalLM"],
        "model_type": "qwen2" if model.qkv_bias else "llama",
        **shared,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": model.seq_len,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        **({} if model.qkv_bias else {"attention_bias": model.biases, "mlp_bias": model.biases}),
    }


def _require_expressible(model: Model, *, gpt2: bool) -> None:
    """Raise InputError if neither Llama, Qwen2 nor GPT-2 computes what the model does."""
    family = "GPT-2" if gpt2 else "Llama"
    rules = {
        "a user's module has an architecture of its own": not model.entry_point,
        "a ViT is no language model": not model.patch,
        "it is no causal language model": model.causal,
        "it has experts": model.experts == 1,
        "it has token types": not model.token_types,
        f"{family} has {'layer norms' if gpt2 else 'RMSNorm'}": model.norm == ("layer" if gpt2 else "rms"),
        f"the feed-forward network of {family} has {'no' if gpt2 else 'a'} gate": model.gated is not gpt2,
        "GPT-2 has as many keys as queries": not gpt2 or model.kv_heads == model.heads,
        "GPT-2 has biases": not gpt2 or model.biases,
        "no output projection of these families has a bias: this one has it, since it is not tied": model.tied or not model.biases,
    }
    for reason, holds in rules.items():
        if not holds:
            hint = "these architectures can be written: Llama, Qwen2 and GPT-2"
            raise InputError(f"the model `{model.name}` cannot be written for Transformers: {reason}", hint=hint)


def foreign_tensors(model: Model) -> dict[str, Foreign]:
    """Return the tensors of a model's files by name; raises InputError as `config_of`."""
    architecture: str = config_of(model)["model_type"]
    found = {name: Foreign((part,)) for name, part in _OUTSIDE[architecture].items() if not (part.startswith("head") and model.tied)}
    for layer in range(model.layers):
        for name, foreign in _gpt2_layer() if architecture == "gpt2" else _llama_layer(model):
            parts = tuple(f"blocks.{layer}.{part}" for part in foreign.parts)
            prefix = "transformer.h" if architecture == "gpt2" else "model.layers"
            found[f"{prefix}.{layer}.{name}"] = Foreign(parts, foreign.transposed)
    return found


_LLAMA = {"model.embed_tokens.weight": "embedding.weight", "model.norm.weight": "norm.weight", "lm_head.weight": "head.weight"}
_OUTSIDE = {
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "gpt2": {
        "transformer.wte.weight": "embedding.weight",
        "transformer.wpe.weight": "embedding.positions",
        **{f"transformer.ln_f.{kind}": f"norm.{kind}" for kind in ("weight", "bias")},
        "lm_head.weight": "head.weight",
    },
}
"""Tensors before and after the layers, by their names in files."""


def _llama_layer(model: Model) -> Iterator[tuple[str, Foreign]]:
    norms = {"input_layernorm": "attention_norm", "post_attention_layernorm": "feed_forward_norm"}
    attention = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output"}
    for name, part in norms.items():
        yield f"{name}.weight", Foreign((f"{part}.weight",))
    for name, part in attention.items():
        yield f"self_attn.{name}.weight", Foreign((f"attention.{part}.weight",))
        if model.biases or (model.qkv_bias and part != "output"):
            yield f"self_attn.{name}.bias", Foreign((f"attention.{part}.bias",))
    for part in ("gate", "up", "down"):
        for kind in ("weight", "bias") if model.biases else ("weight",):
            yield f"mlp.{part}_proj.{kind}", Foreign((f"feed_forward.{part}.{kind}",))


def _gpt2_layer() -> Iterator[tuple[str, Foreign]]:
    """Yield the tensors of a layer; GPT-2 multiplies from the right (`Conv1D`), with query, key and value in one matrix."""
    for kind in ("weight", "bias"):
        yield f"ln_1.{kind}", Foreign((f"attention_norm.{kind}",))
        yield f"ln_2.{kind}", Foreign((f"feed_forward_norm.{kind}",))
        matrices = {"attn.c_attn": ("query", "key", "value"), "attn.c_proj": ("output",), "mlp.c_fc": ("up",), "mlp.c_proj": ("down",)}
        for name, parts in matrices.items():
            part_of = "attention" if name.startswith("attn") else "feed_forward"
            yield f"{name}.{kind}", Foreign(tuple(f"{part_of}.{part}.{kind}" for part in parts), transposed=kind == "weight")


class PretrainedWeights:
    """Reads a model's weights from a folder of Hugging Face, tensor by tensor; other types become float32.

    Raises:
        InputError: the folder is of another model, or lacks a tensor or has one that the model has no place for.
    """

    def __init__(self, folder: Path, model: Model) -> None:
        self._folder = folder
        require_same(folder, model)
        foreign = foreign_tensors(model)
        self._files = self._named(_files_by_name(folder), foreign, model)
        self._places = {part: (name, number) for name, each in foreign.items() for number, part in enumerate(each.parts)}
        self._foreign = foreign

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return the whole tensor `name` of this core, in float32."""
        foreign, number = self._places[name]
        each = self._foreign[foreign]
        file, stored = self._files[foreign]
        try:
            with safe_open(file, "pt") as opened:
                found = opened.get_slice(stored)
                whole = (len(each.parts) * shape[0], *shape[1:])
                if tuple(found.get_shape()) != (whole[::-1] if each.transposed else whole):
                    raise _wrong(self._folder, f"`{stored}` has the shape {list(found.get_shape())}, not that of the model")
                rows = slice(number * shape[0], (number + 1) * shape[0])
                tensor: Tensor = found[:, rows].T if each.transposed else found[rows]
        except (OSError, SafetensorError) as error:
            raise _wrong(self._folder, f"`{file.name}` cannot be read: {error}") from error
        if not tensor.is_floating_point():
            raise _wrong(self._folder, f"`{stored}` is of the type {tensor.dtype}, which no weights have")
        return tensor.to(torch.float32)

    def _named(self, files: Mapping[str, Path], foreign: Mapping[str, Foreign], model: Model) -> dict[str, tuple[Path, str]]:
        """Return the file and the stored name of each tensor; names may lack their first part, as those of a base model do."""
        found = {}
        for name in foreign:
            stored = name if name in files else name.partition(".")[2]
            if stored not in files:
                raise _wrong(self._folder, f"it has no tensor `{name}`")
            found[name] = files[stored], stored
        unused = files.keys() - {stored for _, stored in found.values()}
        for name in sorted(unused):
            if not name.endswith(_UNUSED if model.tied else _UNUSED[1:]):
                raise _wrong(self._folder, f"the model has no place for `{name}`")
        return found


def pretrained_of(training: Training, model: Model) -> Pretrained | None:
    """Return the weights that a job starts from, None for random ones; raises InputError as `PretrainedWeights`."""
    return PretrainedWeights(Path(training.init_from), model).tensor if training.init_from else None


def require_same(folder: Path, model: Model) -> None:
    """Raise InputError unless the `config.json` of a folder states this model."""
    stated = read_config(folder / CONFIG)
    values = read_json(folder / CONFIG)
    rotation = values.get("rope_scaling") or values.get("rope_parameters") or {}
    kind = rotation.get("rope_type", rotation.get("type", "default")) if isinstance(rotation, dict) else rotation
    gate = values.get("hidden_act", "silu")
    rules = {
        f"its type is `{values['model_type']}`, and only {', '.join(_READ)} are read": values["model_type"] in _READ,
        f"its rotary embedding is scaled (`{kind}`)": kind == "default",
        f"its activation is `{gate}`": not stated.get("gated", True) or gate == "silu",
        "its activation is no GELU": stated.get("gated", True) or "activation" in stated,
        "its attention slides over a window": not values.get("use_sliding_window"),
        "it scales attention by layers": not values.get("scale_attn_by_inverse_layer_idx") and values.get("scale_attn_weights", True),
    }
    for reason, holds in rules.items():
        if not holds:
            raise _wrong(folder, reason)
    expected = dataclasses.replace(model, **{"kv_heads": stated.get("heads", 0), **_usual(), **stated, "name": model.name})
    ignored = _ELSEWHERE[:-1] if not model.gated else _ELSEWHERE
    for field in dataclasses.fields(Model):
        theirs, ours = getattr(expected, field.name), getattr(model, field.name)
        if theirs != ours and field.name not in ignored and not (field.name == "rope_theta" and model.learned_positions):
            hint = f'set `{field.name} = {spell(theirs)}` in [model], or `config = "{CONFIG}"` of that folder in place of dimensions'
            raise InputError(f"`{field.name} = {spell(ours)}` in [model], but `init_from = {folder}` has {spell(theirs)}", hint=hint)


def _usual() -> dict[str, Any]:
    """Return what a configuration that does not state it means."""
    optional = (field for field in dataclasses.fields(Model) if field.default is not dataclasses.MISSING)
    return {field.name: field.default for field in optional if field.name not in _ELSEWHERE}


def _files_by_name(folder: Path) -> dict[str, Path]:
    """Return the file of each stored tensor."""
    try:
        names = read_json(folder / INDEX)["weight_map"].values() if (folder / INDEX).is_file() else [WEIGHTS]
        found: dict[str, Path] = {}
        for name in sorted({Path(name).name for name in names}):
            open_regular(folder / name).close()  # safetensors waits for a FIFO
            with safe_open(folder / name, "pt") as opened:
                found |= dict.fromkeys(opened.keys(), folder / name)
        return found
    except (OSError, ValueError, KeyError, AttributeError, TypeError, SafetensorError) as error:
        raise _wrong(folder, f"its weights cannot be read: {error!r:.200}") from error


def _wrong(folder: Path, why: str) -> InputError:
    return InputError(f"training cannot start from `init_from = {folder}`: {why}", hint="name a folder that `save_pretrained` wrote")
