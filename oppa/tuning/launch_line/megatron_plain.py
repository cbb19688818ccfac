"""Vary a launch line of Megatron-LM without a described model: its degrees, its micro-batch and its ZeRO stage.

All options that these parameters do not write stay in every trial, and so does a parameter that such an option needs as it is.
Sources: initialize_model_parallel of megatron/core/parallel_state.py, and core/models/hybrid/hybrid_layer_allocation.py (d98e8a6).
"""

from collections.abc import Collection, Iterator, Mapping

from oppa.problem.bounded_text import whole_number
from oppa.problem.configuration import Value
from oppa.problem.space_file import divisors
from oppa.tuning.formats.megatron import uses_fsdp
from oppa.tuning.launch_line.meaning import Arguments, ArgumentWords
from oppa.tuning.launch_line.options import Options

_ZERO, _GATHER, _SEQUENCE = "--use-distributed-optimizer", "--overlap-param-gather", "--sequence-parallel"
_TP, _PP = "--tensor-model-parallel-size", "--pipeline-model-parallel-size"
_MICRO, _GLOBAL = "--micro-batch-size", "--global-batch-size"
_PATTERNS = ("--hybrid-layer-pattern", "--hybrid-override-pattern")
_STAGES = (
    *("--pipeline-model-parallel-layout", "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"),
    *("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers", "--pipeline-model-parallel-split-rank"),
    *("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"),
)
"""Options that share the layers over the stages of one pipeline."""


def arguments(options: Options, settings: Mapping[str, Value], *, kept: Collection[str], splits: bool) -> Arguments:
    """Return the words of the parameters that vary.

    Args:
        settings: The present configuration.
        kept: Parameters that options need as they are.
        splits: Tensor parallelism comes with sequence parallelism.
    """
    gather = [_GATHER] if _GATHER in options and _ZERO in options else []  # which needs the distributed optimizer
    words: dict[str, ArgumentWords] = {
        "tp": {"1": [_TP, "1"], "*": [_TP, "{tp}", *([_SEQUENCE] if splits else [])]},
        "micro_batch": [_MICRO, "{micro_batch}", _GLOBAL, "{global_batch}"],
        "pp": [_PP, "{pp}"],
        "zero_stage": {"0": [], "1": [_ZERO, *gather]},
    }
    fixed = {*kept, *_fixed(options, settings)}
    return {name: each for name, each in words.items() if name not in fixed}


def _fixed(options: Options, settings: Mapping[str, Value]) -> Iterator[str]:
    """Yield the parameters that stay: FSDP has its own stages of ZeRO, and no parameter counts context-parallel ranks."""
    if uses_fsdp(options.grouped()):
        yield from ("pp", "zero_stage")
    if int(settings.get("cp", 1)) > 1:
        yield "tp"
    if "|" in _pattern(options) or any(option in options for option in _STAGES):  # for one number of stages
        yield "pp"


def choices(options: Options, settings: Mapping[str, Value], *, devices: int | None, varied: Collection[str]) -> dict[str, list[int]]:
    """Return the values of parameters with which ranks hold equally many heads, layers and experts.

    Args:
        settings: The present configuration.
        varied: Parameters that vary.
    """
    found = {"zero_stage": [0, 1]} if "zero_stage" in varied else {}
    if devices is None:
        return found
    sizes, split = divisors(devices), whole_number(options.value("--expert-tensor-parallel-size"))
    ep, cp, heads = int(settings.get("ep", 1)), int(settings.get("cp", 1)), whole_number(options.value("--num-attention-heads")) or 0
    legal = {
        "tp": [size for size in sizes if heads % size == 0],
        "pp": [size for size in sizes if _layers(options) % size == 0 and (not split or devices % (size * ep * split) == 0)],
        "dp": [size for size in sizes if split or size * cp % ep == 0],
    }
    return found | {name: values for name, values in legal.items() if name in {*varied, "dp"} and values != sizes}


def _pattern(options: Options) -> str:
    """Return the layers of a hybrid, with `|` between stages, without multi-token prediction; empty if no option states them."""
    return options.value(*_PATTERNS).partition("/")[0]


def _layers(options: Options) -> int:
    """Return the number of layers that stages share evenly; 0 if it is not known."""
    return len(_pattern(options)) or whole_number(options.value("--num-layers")) or 0
