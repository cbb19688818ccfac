"""Refuse a launch line of Megatron-LM whose options contradict each other, as Megatron-LM itself does before its first step.

Rules: megatron/training/arguments.py, core/transformer/transformer_config.py and core/num_microbatches_calculator.py (core 0.16).
"""

import math
from collections.abc import Mapping

from oppa.problem.bounded_text import whole_number
from oppa.problem.configuration import Value
from oppa.tuning.launch_line.options import Options, contradiction

_EXPERTS, _EXPERT_TP = "--expert-model-parallel-size", "--expert-tensor-parallel-size"
_CHUNK_LAYERS = "--num-layers-per-virtual-pipeline-stage"
_RULES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "--num-layers": (("pp", "model_chunks"), "all stages hold equally many layers"),
    "--num-attention-heads": (("tp",), "tensor-parallel ranks hold equally many attention heads"),
    "--num-experts": (("ep",), "expert-parallel ranks hold equally many experts"),
    "--global-batch-size": (("micro_batch", "dp"), "every data-parallel rank takes whole micro-batches of the global batch"),
}
"""The parameters whose product divides the number of an option, and why."""
_EXCEPT: Mapping[str, tuple[str, ...]] = {
    "--num-layers": (
        *("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers", "--pipeline-model-parallel-layout"),
        *("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split", "--standalone-embedding-stage"),
        *("--pipeline-model-parallel-split-rank", "--heterogeneous-layers-config-path", "--spec"),
        *("--hybrid-layer-pattern", "--hybrid-override-pattern", "--deepspeed_config"),
    ),
    "--global-batch-size": ("--decrease-batch-size-if-needed", "--step-batch-size-schedule"),
}
"""Options under which a rule does not hold."""


def require_compatible(options: Options, settings: Mapping[str, Value]) -> None:
    """Raise InputError, which names the broken rule, if Megatron-LM would refuse the options.

    Args:
        settings: The present configuration that the options state.
    """
    if int(settings.get("ep", 1)) > 1 and "--num-experts" not in options:
        message = f"`{_EXPERTS} {options.value(_EXPERTS)}` ({options.origin(_EXPERTS)}) needs `--num-experts`, which is not stated"
        raise contradiction(message, hint=f"state the experts, or remove `{_EXPERTS}`")
    _require_expert_ranks(options, settings)
    for option, (names, why) in _RULES.items():
        number = whole_number(options.value(option))
        if number and not any(other in options for other in _EXCEPT.get(option, ())):
            _require_multiple(option, number, _sizes(options, settings, names), origin=options.origin(option), why=why)


def _require_expert_ranks(options: Options, settings: Mapping[str, Value]) -> None:
    """Raise InputError if the ranks of a stage cannot hold whole copies of the experts (`initialize_model_parallel`)."""
    ep, split = int(settings.get("ep", 1)), whole_number(options.value(_EXPERT_TP))
    ranks = math.prod(int(settings.get(name, 1)) for name in ("dp", "cp", *(["tp"] if split else [])))
    if "dp" in settings and ranks % (needed := ep * (split or 1)):
        stated = f"`{_EXPERTS} {ep}`{f' with `{_EXPERT_TP} {split}`' if split else ''}"
        message = f"{stated} needs a multiple of {needed} ranks, and there are {ranks} in a stage"
        raise contradiction(message, hint="use fewer expert-parallel ranks")


def _sizes(options: Options, settings: Mapping[str, Value], names: tuple[str, ...]) -> dict[str, int]:
    """Return the sizes of parameters by name; layers of a model chunk take the place of the number of chunks."""
    sizes = {name: int(settings.get(name, 1)) for name in names}
    if "model_chunks" in sizes and (layers := whole_number(options.value(_CHUNK_LAYERS))):
        del sizes["model_chunks"]
        sizes[_CHUNK_LAYERS] = layers
    return {name: size for name, size in sizes.items() if size > 1}


def _require_multiple(option: str, number: int, sizes: Mapping[str, int], *, origin: str, why: str) -> None:
    product = math.prod(sizes.values())
    if number % product:
        factors = " x ".join(f"{name} {size}" for name, size in sizes.items())
        shown = f"{factors} = {product}" if len(sizes) > 1 else factors
        message = f"`{option} {number}` ({origin}) is not a multiple of {shown}"
        raise contradiction(message, hint=f"{why}: use a multiple of {product}")
