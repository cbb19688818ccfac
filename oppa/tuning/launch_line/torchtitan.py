"""Understand a launch line of torchtitan: a file of TOML, or a registered configuration, with the options of the line over it.

Releases before 0.3 read a file, `--job.config_file`; release 0.3 names a function, `--module llama3 --config llama3_8b`. The registry of
models (torchtitan_models.toml) has the dimensions that a name means, and what some functions state. What another function states is not
known, so only what the line overrides may vary. Commits after 0.3 count tokens in place of sequences; see `torchtitan_tokens`.
"""

import functools
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oppa.errors import InputError
from oppa.problem.configuration import Value
from oppa.problem.space_file import divisors
from oppa.tuning.formats.torchtitan import SCHEDULES
from oppa.tuning.launch_line.meaning import Arguments, ArgumentWords, Meaning, StatedFact
from oppa.tuning.launch_line.options import Options, require_consistent
from oppa.tuning.launch_line.sources import LineSources
from oppa.tuning.launch_line.templates_of import templates
from oppa.tuning.launch_line.torchtitan_effective import DEFAULTS, GLOBAL, LENGTH, LOCAL, OLDER, EffectiveConfiguration
from oppa.tuning.launch_line.torchtitan_tokens import PASSES, TOKENS, batch_words, counts_tokens

_FILE = "job.config_file"
_DEGREES = {
    "tp": "parallelism.tensor_parallel_degree",
    "pp": "parallelism.pipeline_parallel_degree",
    "cp": "parallelism.context_parallel_degree",
    "ep": "parallelism.expert_parallel_degree",
}
_PIPELINE_BATCH = "parallelism.pipeline_parallel_microbatch_size"
_SHARDS, _REPLICAS = (f"parallelism.data_parallel_{each}_degree" for each in ("shard", "replicate"))
_RECOMPUTE = "activation_checkpoint.mode"
_OFFLOAD = "training.enable_cpu_offload"
_STATED_BY = {
    **_DEGREES,
    "micro_batch": "training.local_batch_size",
    "recompute": _RECOMPUTE,
    "compile": "compile.enable",
    "cpu_offload": _OFFLOAD,
    "zero_stage": "parallelism.fsdp_reshard_after_forward",
    "precision": "training.mixed_precision_param",
    "dp_replicate": _REPLICAS,
    "schedule": "parallelism.pipeline_parallel_schedule",
}
"""Keys that state parameters."""
_LOOPED = ("interleaved", "interleaved-zb", "zb-v")
_SET = (
    *(GLOBAL, LOCAL, LENGTH, _PIPELINE_BATCH, _SHARDS, _REPLICAS, *_DEGREES.values(), "parallelism.pipeline_parallel_schedule"),
    *(_OFFLOAD, "parallelism.fsdp_reshard_after_forward", _RECOMPUTE, "compile.enable", "compile.no-enable"),
    *("training.disable_cuda_graphs", "training.no-disable_cuda_graphs"),
)
"""Options that trials set if the search space completes the line."""
_DERIVED = {
    f"--{GLOBAL}": ("dp", "micro_batch"),
    f"--{TOKENS[GLOBAL]}": ("dp", "micro_batch"),
    "--parallelism.fsdp_reshard_after_forward": ("pp",),
}
"""Parameters that decide the default of an option."""
_MODES = tuple(f"activation_checkpoint:{mode}" for mode in ("none", "selective", "full", "memory-budget"))
"""Subcommands of release 0.3, which take the place of an option."""
_OF_FUNCTIONS: Arguments = {
    "compile": {"false": ["--compile.no-enable"], "true": ["--compile.enable"]},
    "cuda_graphs": {"false": ["--training.disable_cuda_graphs"], "true": ["--training.no-disable_cuda_graphs"]},
    "recompute": {mode: [f"activation_checkpoint:{mode}"] for mode in ("none", "selective", "full")},
}
"""Words for a registered function; options that follow a subcommand are its own, so recomputation is last."""
_MEASURED = ("metrics.log_freq",)


@functools.cache
def registry() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the dimensions of torchtitan's models by name and flavor, and what functions state by module and name."""
    return tomllib.loads(Path(__file__).with_name("torchtitan_models.toml").read_text())


def _spelled(name: str) -> str:
    """Return the key that an option of the line states, also as a subcommand. Tyro reads a dash as an underscore, except in a negation."""
    key = re.sub(r"(?<!\.no)-", "_", name.lstrip("-"))
    return _RECOMPUTE if key == "activation_checkpoint" else key


def understand(sources: LineSources, *, evidence: str) -> Meaning:
    """Return the meaning of a line of torchtitan.

    Raises:
        InputError: its file cannot be read, or a value in it is unreadable.
    """
    options = Options(sources.line.arguments, spelled=_spelled, subcommands=_MODES)
    require_consistent(options, _DEGREES.values())
    file = options.get(_FILE)
    values = sources.contents(file.values[0]) if file and file.values else {}
    shown = Path(file.text).name if file else ""
    if file is None:
        functions = registry()["functions"].get(options.value("module").removeprefix("torchtitan.models."), {})
        values, shown = functions.get(options.value("config"), {}), "the registry"
    effective = EffectiveConfiguration(options, values, shown, in_tokens=file is None and counts_tokens(options, sources))
    if file is None and not effective.is_known:
        return _of_unknown_function(sources, options, effective, evidence=evidence)
    model, origin = _model(options, effective, shown)
    settings, origins, global_batch = _settings(effective, sources)
    by_function = file is None
    completes = by_function and bool(model) and not effective.in_tokens and "recompute" in settings
    arguments = {} if completes else _arguments(settings, effective, total=global_batch, by_function=by_function, has_model=bool(model))
    replaced = {*_SET, *_MEASURED} if completes else _replaced(arguments)
    precision = str(effective.get("training.mixed_precision_param", "bfloat16"))
    facts = [StatedFact(name="file", value=file.text, origin=file.origin)] if file else []
    return Meaning(
        framework="torchtitan",
        evidence=evidence,
        devices=sources.devices,
        model=model,
        model_origin=origin,
        global_batch=global_batch,
        batch_origin=effective.stated(GLOBAL)[1] or "local batch x dp",
        precision="bf16" if precision == "bfloat16" else "fp32",
        settings=settings,
        origins=origins,
        space="torchtitan" if model else "",
        completes=completes,
        words=tuple(templates(options.without(replaced))),
        derived=_derived(effective),
        arguments=arguments,
        choices=_stated_extras(settings) if completes else _choices(settings, arguments, has_model=bool(model)),
        steps={"format": "torchtitan"},
        added=() if completes else ("--metrics.log_freq", "1"),
        facts=tuple(facts),
        notes=() if "recompute" in settings else (_kept_mode(effective),),
        conflicts=tuple(effective.differences()),
        missing=sources.missing,
    )


def _kept_mode(effective: EffectiveConfiguration) -> str:
    """Return the note on a mode of recomputation that the search space lacks."""
    mode, origin = effective.stated(_RECOMPUTE)
    return f"trials keep `{_RECOMPUTE} = {mode}` ({origin}), and predictions have no recomputation"


def _of_unknown_function(sources: LineSources, options: Options, effective: EffectiveConfiguration, *, evidence: str) -> Meaning:
    """Return the meaning of a line whose function is not registered: what the line states is known, and may vary."""
    stated = {name: origin for name, key in _STATED_BY.items() if (origin := effective.stated(key)[1])}
    found, _, _ = _settings(effective, sources)
    total = effective.number(GLOBAL, -1)
    arguments = _arguments(found, effective, total=max(total, 1), by_function=True, has_model=False)
    arguments = {
        name: words for name, words in arguments.items() if (total > 0 or name in ("zero_stage", "recompute")) and name in {"dp", *stated}
    }
    unstated = [GLOBAL] if total <= 0 else [_STATED_BY[name] for name in ("tp", "micro_batch") if name not in stated]
    function = options.value("config") or "the configuration"
    unstated = [LENGTH] if effective.in_tokens and not effective.stated(LENGTH)[1] else unstated
    hints = [
        f"state `--{effective.option(key)} ...` in the line, so that more may vary: what `{function}` states is not known"
        for key in unstated
    ]
    return Meaning(
        framework="torchtitan",
        evidence=evidence,
        devices=sources.devices,
        global_batch=total if total > 0 else None,
        batch_origin=effective.stated(GLOBAL)[1],
        settings={name: value for name, value in found.items() if name in stated},
        origins=stated,
        words=tuple(templates(options.without(_replaced(arguments)))),
        derived=_derived(effective),
        arguments=arguments,
        choices=_choices(found, arguments, has_model=False),
        steps={"format": "torchtitan"},
        added=("--metrics.log_freq", "1"),
        hints=tuple(hints),
        missing=sources.missing,
    )


def _model(options: Options, effective: EffectiveConfiguration, file: str) -> tuple[dict[str, Value], str]:
    """Return the dimensions of a registered model, and their origin; nothing for a model that the registry lacks."""
    name, flavor = str(effective.get("model.name", "")), str(effective.get("model.flavor", ""))
    origin = f"{options.origin('config') or file} and the registry"
    known = {each.lower(): dimensions for each, dimensions in registry().get(name, {}).items()}
    if flavor.lower() not in known:
        return {}, ""
    return {"gated": True, "tied": False, **known[flavor.lower()], "seq_len": effective.number(LENGTH, DEFAULTS[LENGTH])}, origin


def _settings(effective: EffectiveConfiguration, sources: LineSources) -> tuple[dict[str, Value], dict[str, str], int]:
    """Return the present configuration, the origins of what is stated, and the global batch."""
    degrees = {name: effective.number(key, 1) for name, key in _DEGREES.items()}
    found: dict[str, Value] = {"tp": degrees["tp"], "pp": degrees["pp"]}
    found |= {name: degrees[name] for name in ("cp", "ep") if effective.stated(_DEGREES[name])[1]}
    devices = sources.devices.count or 1
    if devices % (product := degrees["tp"] * degrees["pp"] * degrees["cp"]):
        message = (
            f"tp {degrees['tp']} x pp {degrees['pp']} x cp {degrees['cp']} needs {product} ranks, and the launch line starts {devices}"
        )
        raise InputError(message, hint="start a multiple of it")
    found["dp"] = dp = devices // product
    replicas = effective.number(_REPLICAS, 1)
    shards = effective.number(_SHARDS, -1)
    shards = dp // replicas if shards == -1 else shards
    reshard = str(effective.get("parallelism.fsdp_reshard_after_forward", "default"))
    found["zero_stage"] = (
        0 if shards == 1 and replicas > 1 else 2 if reshard == "never" or (reshard == "default" and degrees["pp"] > 1) else 3
    )
    found |= {"dp_replicate": replicas} if replicas > 1 and found["zero_stage"] else {}
    local = effective.number(LOCAL, DEFAULTS[LOCAL])
    total = effective.number(GLOBAL, DEFAULTS[GLOBAL])
    in_pipeline = local if effective.in_tokens else effective.number(_PIPELINE_BATCH, 1)
    found["micro_batch"] = local if degrees["pp"] == 1 else in_pipeline
    if degrees["pp"] > 1:
        named = str(effective.get("parallelism.pipeline_parallel_schedule", "1F1B"))
        schedule = next((ours for ours, theirs in SCHEDULES.items() if theirs.lower() == named.lower()), named)
        found |= {"schedule": schedule, "model_chunks": 2 if schedule in _LOOPED else 1}
    mode = str(effective.get(_RECOMPUTE, "selective"))
    found |= {"recompute": mode} if mode in ("none", "selective", "full") else {}
    found["compile"] = bool(effective.get("compile.enable", False))
    found |= {"cpu_offload": True} if effective.get(_OFFLOAD, False) is True else {}
    if effective.stated("training.disable_cuda_graphs")[1]:
        found["cuda_graphs"] = not effective.get("training.disable_cuda_graphs", False)
    keys = {**_STATED_BY, "micro_batch": _PIPELINE_BATCH} if degrees["pp"] > 1 else _STATED_BY
    origins = {name: effective.stated(key)[1] or "default of torchtitan" for name, key in keys.items()}
    passes = effective.number(PASSES, 1) if effective.in_tokens and degrees["pp"] > 1 else 1
    return found, origins, total if total > 0 else local * passes * dp


def _arguments(
    settings: Mapping[str, Value], effective: EffectiveConfiguration, *, total: int, by_function: bool, has_model: bool
) -> dict[str, ArgumentWords]:
    """Return the words of each parameter that varies, as releases before 0.3 have them.

    A pipeline stays as it is: in a file's release, the batch that passes through it is another option for each schedule. So does
    compilation that nothing states, as its option depends on the release.
    """
    batch = [f"--{GLOBAL}", "{global_batch}"]
    in_tokens = batch_words(total, effective.number(LENGTH, DEFAULTS[LENGTH])) if effective.in_tokens else {}
    batch = list(in_tokens.get("dp", batch))
    replicas = [] if settings["zero_stage"] else [effective.spelled(_REPLICAS), "{dp}"]
    found: dict[str, ArgumentWords] = {
        "dp": [*batch, *replicas, effective.spelled(_SHARDS), "1" if replicas else "-1"],
        "tp": [effective.spelled(_DEGREES["tp"]), "{tp}"],
    }
    if settings["zero_stage"]:
        option = "--parallelism.fsdp_reshard_after_forward"
        found["zero_stage"] = {"2": [option, "never"], "3": [option, "always"]}
    if settings["pp"] == 1:
        found["micro_batch"] = in_tokens.get("micro_batch") or [effective.spelled(LOCAL), "{micro_batch}"]
    if by_function and has_model:
        found |= _OF_FUNCTIONS
    if "cpu_offload" in settings and has_model:
        found["cpu_offload"] = {"true": []}
    if not by_function:
        found["recompute"] = [f"--{_RECOMPUTE}", "{recompute}"]
        if has_model:
            if effective.stated("compile.enable")[1]:
                table, _, name = effective.spelled("compile.enable").rpartition(".")
                found["compile"] = {"false": [f"{table}.no-{name}"], "true": [f"{table}.{name}"]}
            else:
                found["compile"] = {"false": []}
            found["cuda_graphs"] = {"false": []}  # these releases have none
    if not {"recompute"} <= found.keys() & settings.keys():
        found["recompute"] = {str(settings.get("recompute", "none")): effective.words(_RECOMPUTE)}  # last: options behind a subcommand
    return found


def _stated_extras(settings: Mapping[str, Value]) -> dict[str, object]:
    """Return the parameters that vary only on request, at the values that the line states."""
    return {name: [settings[name]] for name in ("cp", "dp_replicate", "cpu_offload") if name in settings}


def _choices(settings: Mapping[str, Value], arguments: Arguments, *, has_model: bool) -> dict[str, object]:
    """Return the values among which trials choose. Replicas of which each shards stay, so tensor parallelism leaves a multiple of them."""
    found: dict[str, object] = {"zero_stage": [2, 3]} if "zero_stage" in arguments else {}
    if "tp" in arguments and (replicas := int(settings.get("dp_replicate", 1))) > 1:
        ranks = int(settings["dp"]) * int(settings["tp"])
        found["tp"] = [tp for tp in divisors(ranks) if ranks // tp % replicas == 0]
    if isinstance(recompute := arguments.get("recompute"), Mapping):
        found["recompute"] = [*recompute]
    switches = {name: [False, True] if len(arguments.get(name, ())) > 1 else [False] for name in ("compile", "cuda_graphs")}
    switches |= {} if "recompute" in settings else {"compile": [bool(settings["compile"])]}  # what the compiler recomputes
    switches |= {"cpu_offload": [True]} if "cpu_offload" in arguments else {}
    return found | (switches if has_model else {})


def _derived(effective: EffectiveConfiguration) -> dict[str, tuple[str, ...]]:
    """Return the parameters that decide an option; the shard degree is one of them unless torchtitan computes it."""
    is_left = effective.is_known and effective.get(_SHARDS, -1) == -1
    return _DERIVED if is_left else {**_DERIVED, effective.spelled(_SHARDS): ("dp",)}


def _replaced(arguments: Arguments) -> set[str]:
    """Return the options that trials set themselves."""
    every = (words for each in arguments.values() for words in (each.values() if isinstance(each, Mapping) else [each]))
    own = {_spelled(re.split("[:=]", word)[0]) for words in every for word in words if re.match(r"--|\w+:", word)}
    return own | {OLDER[key] for key in own if key in OLDER} | set(_MEASURED)
