"""Understand a launch line of Megatron-Bridge: overrides such as `model.tensor_model_parallel_size=2` on a recipe, a Python function.

The recipe defines the model and what the line does not override. Nothing is predicted; trials decide. The runner takes short options, too,
such as `-tp 2`, over which an override `KEY=VALUE` takes precedence (scripts/training/run_recipe.py, commit 067f987).
"""

from oppa.problem.configuration import Value
from oppa.tuning.launch_line.meaning import ArgumentWords, Meaning, imposed_note
from oppa.tuning.launch_line.options import Options, require_consistent
from oppa.tuning.launch_line.sources import LineSources
from oppa.tuning.launch_line.templates_of import templates

_KEYS = {
    "tp": "model.tensor_model_parallel_size",
    "pp": "model.pipeline_model_parallel_size",
    "cp": "model.context_parallel_size",
    "ep": "model.expert_model_parallel_size",
    "micro_batch": "train.micro_batch_size",
}
_GLOBAL, _INTERVAL, _SEQUENCE = "train.global_batch_size", "logger.log_interval", "model.sequence_parallel"
_CHUNKS = "model.virtual_pipeline_model_parallel_size"
_SHORT = {"tp": "-tp", "pp": "-pp", "cp": "-cp", "ep": "-ep", "micro_batch": "-mb"}
_SPELLED = {name: key for ours, key in _KEYS.items() for name in (_SHORT[ours], f"--{key.rpartition('.')[2]}")}
_SPELLED |= dict.fromkeys(("-gb", "--global_batch_size"), _GLOBAL)
_SPELLED |= dict.fromkeys(("-vp", "--virtual_pipeline_model_parallel_size"), _CHUNKS)
"""Keys by the runner's options for them."""


def understand(sources: LineSources, *, evidence: str) -> Meaning:
    """Return the meaning of a line of Megatron-Bridge."""
    options = Options(sources.line.arguments, bare=True, spelled=lambda name: _SPELLED.get(name, name))
    require_consistent(options, [*_KEYS.values(), _GLOBAL])
    settings: dict[str, Value] = {name: size for name, key in _KEYS.items() if (size := options.number(key)) is not None}
    stated = options.number(_GLOBAL)
    arguments: dict[str, ArgumentWords] = {}
    if "tp" in settings:
        arguments["tp"] = {"1": [f"{_KEYS['tp']}=1", f"{_SEQUENCE}=false"], "*": [f"{_KEYS['tp']}={{tp}}", f"{_SEQUENCE}=true"]}
    chunks = options.number(_CHUNKS) if options.value(_CHUNKS) not in ("", "null", "None") else 1
    if "pp" in settings and chunks == 1:
        arguments["pp"] = [f"{_KEYS['pp']}={{pp}}"]
    if "micro_batch" in settings and stated:
        arguments["micro_batch"] = [f"{_KEYS['micro_batch']}={{micro_batch}}", f"{_GLOBAL}={{global_batch}}"]
    choices: dict[str, object] = {}
    if "tp" in settings and int(settings.get("cp", 1)) > 1:  # its ranks count among those that tp and dp share
        arguments["cp"] = [f"{_KEYS['cp']}={{cp}}"]
        choices["cp"] = {"values": [1, settings["cp"]], "degree": True}
    replaced = {_KEYS[name] for name in arguments} | {_INTERVAL} | ({_SEQUENCE} if "tp" in arguments else set())
    left = [key for name, key in _KEYS.items() if name not in settings and name in ("tp", "pp", "micro_batch")]
    hints = [f"state `{key}=...` in the line, so that it may vary: the recipe's own value is not known" for key in left]
    imposed = (_SEQUENCE,) if int(settings.get("tp", 1)) > 1 and _SEQUENCE not in options else ()
    fixed = {name: size for name, size in settings.items() if name in ("pp", "cp", "ep") and name not in arguments}
    return Meaning(
        framework="megatron-bridge",
        evidence=evidence,
        devices=sources.devices,
        global_batch=stated,
        batch_origin=options.origin(_GLOBAL),
        settings=settings,
        origins={name: options.origin(key) for name, key in _KEYS.items() if name in settings},
        words=tuple(templates(options.without(replaced))),
        aliases={name: (ours,) for ours, key in _KEYS.items() for name, full in _SPELLED.items() if full == key},
        arguments=arguments,
        choices=choices,
        steps={"format": "megatron"},
        added=(f"{_INTERVAL}=1",),
        imposed=imposed,
        notes=(*(f"{name} = {size} stays as it is" for name, size in fixed.items()), *map(imposed_note, imposed)),
        hints=tuple(hints),
        missing=sources.missing,
    )
