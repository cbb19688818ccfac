"""Hold the parameters of a launch line of Megatron-LM that its other options need, as such an option stays in every trial.

Sources: validate_args of megatron/training/arguments.py, __post_init__ of core/transformer/transformer_config.py and of
core/optimizer/optimizer_config.py, and core/optimizer/__init__.py (d98e8a6).
"""

from collections.abc import Collection, Mapping

from oppa.plain_text import clipped
from oppa.problem.configuration import Value
from oppa.problem.space_file import divisors
from oppa.problem.templates import spelled
from oppa.tuning.formats.megatron import uses_fsdp
from oppa.tuning.launch_line.options import Options, contradiction

Needs = Mapping[str, tuple[Value, str]]
"""Value of each parameter that an option needs, with the option."""

_SEQUENCE = "--sequence-parallel"
_PRECISE = ("--main-grads-dtype", "--main-params-dtype", "--exp-avg-dtype", "--exp-avg-sq-dtype")
_DISTRIBUTED = ("--use-precision-aware-optimizer", "--optimizer-cpu-offload", "--fp8-param-gather", *_PRECISE)
_STEP = "--overlap-param-gather-with-optimizer-step"
_NEEDS: Mapping[str, Mapping[str, Value]] = {
    **{option: {"zero_stage": 1} for option in _DISTRIBUTED},
    _STEP: {"zero_stage": 1, "overlap_zero_comm": True, "overlap_zero_allgather": True, "schedule": "interleaved"},
    "--moe-layer-recompute": {"recompute": "selective"},
    "--distribute-saved-activations": {"recompute": "full", "sequence_parallel": False},
}
_DEGREES = {"zero_stage": "dp", "schedule": "pp", "sequence_parallel": "tp"}
"""Degree that has several ranks wherever such a parameter counts."""


def needs_of(options: Options, settings: Mapping[str, Value], *, replaced: Collection[str]) -> Needs:
    """Return the parameters that options need.

    Args:
        settings: The present configuration that the options state.
        replaced: Options that parameters write.

    Raises:
        InputError: the options state another value than one of them needs, which Megatron-LM refuses.
    """
    found: dict[str, tuple[Value, str]] = {}
    for option, values in _NEEDS.items():
        if option in options and option not in replaced and not (option in _PRECISE and options.value(option) == "fp32"):
            found |= {name: (value, option) for name, value in values.items()}
    if uses_fsdp(options.grouped()):  # which takes the place of the distributed optimizer
        found.pop("zero_stage", None)
    present = {**settings, "sequence_parallel": _SEQUENCE in options}
    for name, (value, option) in found.items():
        if present.get(name, value) != value:
            stated = clipped(f"{option} {options.value(option)}".strip())
            message = f"`{stated}` ({options.origin(option)}) needs {name} = {spelled(value)}, and it is {spelled(present[name])}"
            raise contradiction(message, hint=f"remove `{option}`, or state what it needs")
    return found


def kept_by(needs: Needs) -> set[str]:
    """Return the parameters that stay as the line states them, where no search space has a value for them."""
    return {*needs, *(["tp"] if "sequence_parallel" in needs else [])}


def choices_of(needs: Needs, *, devices: int | None) -> dict[str, object]:
    """Return the choices of the parameters: the value that is needed, and several ranks where it counts."""
    found: dict[str, object] = {name: [value] for name, (value, _) in needs.items() if name != "sequence_parallel"}
    several = [size for size in divisors(devices or 1) if size > 1]
    return found | {degree: several for name, degree in _DEGREES.items() if name in needs and several}
