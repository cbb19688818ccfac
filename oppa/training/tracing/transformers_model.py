"""Trace a model of Hugging Face Transformers from its `config.json`. The package is needed here alone.

Attention runs fused and causal without a mask, as with flash attention and sequences without padding. Weights have the job's precision.
"""

import json
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oppa.errors import EnvironmentLackingError, InputError
from oppa.problem.model import Model
from oppa.problem.trace import ModelTrace
from oppa.training.model.stage import DTYPES
from oppa.training.torch_internals import FakeTensorMode
from oppa.training.tracing.passes import PartWeights, Pass, combine
from oppa.training.tracing.recorder import Recording, held_tensors, recording

FUSED = "oppa_fused"
DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")
"""Fused attention keeps a seed in place of a mask, so its dropout is left out."""


def trace_transformers(model: Model, precision: str) -> ModelTrace:
    """Trace the model of a `config.json`.

    Raises:
        EnvironmentLackingError: Transformers is not installed.
        InputError: it has no such architecture, or the model has no list of layers.
    """
    config = _config(Path(model.config))
    with FakeTensorMode(allow_non_fake_inputs=True):
        module = _LanguageModel(_built(config, precision), config)
        one, two = module.run(1, model.seq_len), module.run(2, model.seq_len)
        shorter = module.run(1, model.seq_len // 2) if model.seq_len > 1 else None
    return combine(f"{type(module.model).__name__} of {Path(model.config).name}", module.weights, one, two, shorter)


def _config(path: Path) -> Any:
    """Return the configuration with fused attention; raises what `trace_transformers` does."""
    try:
        from transformers import AttentionInterface, AutoConfig
    except ImportError as error:
        hint = "run `pip install transformers` in oppa's environment, and the prior takes the memory of the model itself"
        raise EnvironmentLackingError("the package `transformers` is not installed", hint=hint) from error
    AttentionInterface.register(FUSED, _fused)
    values = json.loads(path.read_text())
    architecture = values.pop("model_type")
    try:
        config = AutoConfig.for_model(architecture, **values)
    except ValueError:
        raise InputError(f"Transformers has no architecture `{architecture}`", hint="update it, or correct `model_type`") from None
    config = config.get_text_config()
    config.use_cache = False
    for name in DROPOUTS:
        if hasattr(config, name):
            setattr(config, name, 0.0)
    return config


def _built(config: Any, precision: str) -> Any:
    """Return the model for training, with an output projection."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    masked = any("MaskedLM" in name for name in config.architectures or ())
    auto = AutoModelForMaskedLM if masked else AutoModelForCausalLM
    make: Any = auto.from_config  # untyped
    return make(config, dtype=DTYPES[precision], attn_implementation=FUSED).train()


def _fused(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *_: Any,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **__: Any,
) -> tuple[Tensor, None]:
    """Attend as flash attention does: without a mask, and to keys of fewer heads."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    out = F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scaling, enable_gqa=query.shape[1] != key.shape[1])
    return out.transpose(1, 2), None


class _LanguageModel:
    """Runs a model whose layers record what they keep; layers of the same structure run once in each pass."""

    def __init__(self, model: Any, config: Any) -> None:
        self.model, self._config = model, config
        self._layers = _layers(model, config.num_hidden_layers)
        self._runs: list[Recording] = []
        self._known: dict[Hashable, tuple[Recording, Any]] = {}
        kinds = getattr(config, "layer_types", None) or [""] * len(self._layers)
        for layer, kind in zip(self._layers, kinds, strict=True):
            self._watch(layer, kind)

    @property
    def weights(self) -> PartWeights:
        """Return the parameters of the parts; a norm after the layers counts with the embedding."""
        layers = [sum(weight.numel() for weight in layer.parameters()) for layer in self._layers]
        head = self.model.get_output_embeddings()
        tied = head.weight is self.model.get_input_embeddings().weight
        projection = sum(weight.numel() for weight in head.parameters())
        others = sum(weight.numel() for weight in self.model.parameters()) - sum(layers) - (0 if tied else projection)
        return PartWeights(layers=layers, embedding=others, head=projection, tied=tied)

    def run(self, sequences: int, tokens: int) -> Pass:
        """Return what a forward pass on some sequences keeps and computes."""
        self._runs.clear()
        self._known.clear()
        ids = torch.zeros(sequences, tokens, dtype=torch.long)
        with recording(held_tensors(self.model)) as others:
            self.model(input_ids=ids, labels=ids)
        return Pass(
            sequences=sequences,
            tokens=tokens,
            layers_kept_bytes=sum(run.kept_bytes for run in self._runs) / len(self._layers),
            layers_flops=sum(run.flops for run in self._runs) / len(self._layers),
            head_kept_bytes=others.kept_bytes,
        )

    def _watch(self, layer: nn.Module, kind: str) -> None:
        """Replace the forward pass of a layer by one that records, or that returns the output of a layer of the same structure."""
        usual = layer.forward
        shapes = tuple((name, weight.shape) for name, weight in layer.named_parameters())
        signature = repr(layer), kind, shapes

        def forward(hidden: Tensor, *others: Any, **named: Any) -> Any:
            if signature not in self._known:
                with recording([*held_tensors(layer), *_tensors(others), *_tensors(named)]) as run:
                    output = usual(hidden, *others, **named)
                self._known[signature] = run, output
            run, output = self._known[signature]
            self._runs.append(run)
            return output

        layer.forward = forward


def _layers(model: nn.Module, count: int) -> list[nn.Module]:
    """Return the layers of a model; raises InputError if it has no list of as many modules as its configuration has layers."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    raise InputError(f"`{type(model).__name__}` has no list of {count} layers", hint="state its dimensions in `[model]`")


def _tensors(values: Any) -> Iterator[Tensor]:
    """Yield the tensors among the arguments of a layer, such as positions that all layers share."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from _tensors(value)
