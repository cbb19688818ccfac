"""Understand a launch line of Megatron-LM: its options state model, batch and layout, and its search space completes the line."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping

from oppa import catalog
from oppa.errors import InputError
from oppa.pipeline.stage_layout import EVEN
from oppa.plain_text import clipped
from oppa.problem.bounded_text import read_text
from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Value
from oppa.problem.model import Model, key_of
from oppa.problem.problem import facts_of
from oppa.problem.space import Parameter, SearchSpace
from oppa.problem.space_file import read_space
from oppa.problem.training import Training
from oppa.tuning.formats import megatron, megatron_model, space_words
from oppa.tuning.formats.megatron_command import model_facts, states_architecture
from oppa.tuning.launch_line import megatron_plain
from oppa.tuning.launch_line.meaning import (
    ASSUMED_VOCAB,
    VOCAB_NOTE,
    Arguments,
    LineConflict,
    LineDevices,
    Meaning,
    StatedFact,
    imposed_note,
)
from oppa.tuning.launch_line.megatron_layout import layout_settings
from oppa.tuning.launch_line.megatron_needs import choices_of, kept_by, needs_of
from oppa.tuning.launch_line.megatron_rules import require_compatible
from oppa.tuning.launch_line.options import Options, contradiction, require_consistent
from oppa.tuning.launch_line.sources import LineSources
from oppa.tuning.launch_line.templates_of import templates

SPACE, LOCAL = "megatron", "megatron-local"
_DEGREES = {"tp": "--tensor-model-parallel-size", "pp": "--pipeline-model-parallel-size", "cp": "--context-parallel-size"}
_OPTION_OF = {name: option for option, name in megatron.NUMBERS.items()} | {"cp": "--context-parallel-size"}
_ALIASES = {
    **dict.fromkeys(("--recompute-activations", "--activations-checkpoint-method", "--checkpoint-activations"), ("recompute",)),
    **dict.fromkeys(("--num-layers-per-virtual-pipeline-stage", megatron.STAGES), ("pp", "model_chunks")),
}
"""Options that state parameters in other words than the search space, with these parameters."""
MEASURED = ("--log-interval", "--exit-interval", "--rampup-batch-size")
"""Options of the line that trials leave out: they print each step, end after some, and have a constant batch."""
_HYBRID = ("--hybrid-layer-pattern", "--hybrid-override-pattern", "--spec", "--heterogeneous-layers-config-path")
_ENCODERS = ("--decoder-seq-length", "--encoder-num-layers", "--img-h", "--freeze-ViT", "--language-model-type", "--vision-model-type")
_VOCABULARIES = {"GPT2BPETokenizer": 50257}
"""Sizes of vocabularies that a tokenizer always has."""
_FSDP_NOTE = "the search space of Megatron-LM has no FSDP: its stage, its pipeline and all other options stay, and nothing is predicted"
_LAYOUT = "pipeline_layout"
_LAYOUT_NOTE = (
    "the search space of Megatron-LM has no unequal stages with several on a rank: "
    "the pipeline and all other options stay, and nothing is predicted"
)
_GLOBAL = "--global-batch-size"
_OPTIMIZER, _MODULES, _SEQUENCE = "--optimizer", "--recompute-modules", "--sequence-parallel"
_IMPL, _DISTRIBUTED = "--transformer-impl", "--distribute-saved-activations"
_LIKE_ADAMW = ("", "adam", "cpu_adam")


def understand(sources: LineSources, *, evidence: str) -> Meaning:
    """Return the meaning of a line of Megatron-LM.

    Raises:
        InputError: an option is unreadable, two contradict each other, or the devices are too few for the layout.
    """
    options = Options(sources.line.arguments)
    require_consistent(options, [*megatron.NUMBERS, *_DEGREES.values()])
    if "--bf16" in options and "--fp16" in options:
        raise contradiction("`--bf16` and `--fp16`")
    devices = _devices(sources, options)
    model, assumed, notes = _model(options, sources)
    settings = _settings(options, devices, model)
    require_compatible(options, settings)
    global_batch = options.number(_GLOBAL) or int(settings.get("micro_batch", 1)) * int(settings.get("dp", 1))
    splits = _splits_sequences(options)
    space = _space(devices, global_batch, {**assumed, **model})
    worded = [known for known in space.parameters if known.is_extra and known.words]
    extras = _extras(options, worded, settings)
    settings = {**settings, **extras}
    arguments: Arguments = {}
    choices = _choices(extras, worded, splits=splits)
    replaced = {*megatron.KNOWN, *_ALIASES} | {option for known in worded if known.name in extras for option in _options_of(known.words)}
    needs = needs_of(options, settings, replaced=replaced if model else ())
    choices |= choices_of(needs, devices=devices.count)
    if not model:
        arguments = megatron_plain.arguments(options, settings, kept=kept_by(needs), splits=splits)
        choices = dict(megatron_plain.choices(options, settings, devices=devices.count, varied=arguments))
        replaced = {option for words in arguments.values() for option in _options_of(words)}
    lacks_sequence = splits and int(settings.get("tp", 1)) > 1 and _SEQUENCE in replaced and _SEQUENCE not in options
    imposed = (_SEQUENCE,) if lacks_sequence else ()
    return Meaning(
        framework="megatron",
        evidence=evidence,
        devices=devices,
        model=model,
        model_origin=options.origin("--num-layers", "--hidden-size"),
        assumed=assumed,
        global_batch=global_batch,
        batch_origin=options.origin(_GLOBAL) or "micro-batch x dp, Megatron-LM's default",
        precision="fp16" if "--fp16" in options else "bf16" if "--bf16" in options else "fp32",
        settings=settings,
        origins=_origins(options, extras),
        space=(SPACE if splits else LOCAL) if model else "",
        completes=bool(model),
        words=tuple(templates(options.without({*replaced, *MEASURED}))),
        aliases=_ALIASES if model else {},
        derived={_GLOBAL: ("dp", "micro_batch")},
        imposed=imposed,
        arguments=arguments,
        choices=choices,
        steps={"format": "megatron"},
        added=("--log-interval", "1", "--exit-interval", "{steps}"),
        conflicts=_conflicts(options),
        notes=(*notes, *map(imposed_note, imposed), *(() if splits else (_unsplit_note(options),))),
        facts=_kept_modules(options, extras),
        training=_optimizer(options),
        unpredicted=tuple(_unpredicted(options, extras)),
        missing=sources.missing,
    )


def _extras(options: Options, worded: Iterable[Parameter], settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return the further parameters that options state.

    Args:
        worded: Further parameters of the search space that have words.
        settings: The present configuration without them.
    """
    found = space_words.read(worded, _in_order(options.grouped()))
    found |= {name: settings[name] for name in ("cp", _LAYOUT) if name in settings}
    if (layers := options.number("--recompute-num-layers")) and settings["recompute"] == "full":
        found |= {"recompute_layers": layers}  # also one that the search space does not list
    if "--fp8-format" in options and "--fp8-recipe" not in options:
        found |= {"fp8": "delayed"}  # the default of --fp8-recipe
    return found


def _conflicts(options: Options) -> tuple[LineConflict, ...]:
    """Return what trials leave out: batches that grow."""
    if (ramp := "--rampup-batch-size") not in options:
        return ()
    return (LineConflict(about="steps of growing batches", taken="no ramp-up in trials", other=options.value(ramp)),)


def _splits_sequences(options: Options) -> bool:
    """Return whether trials have sequence parallelism under tensor parallelism, which experts require.

    Local norms refuse it, and so does the distribution of saved activations. A mixture of experts that states tensor parallelism with local
    norms therefore needs Apex.
    """
    if _DISTRIBUTED in options:
        return False
    is_split = "--num-experts" in options and (options.number("--tensor-model-parallel-size") or 1) > 1
    return options.value(_IMPL) != "local" or _SEQUENCE in options or is_split


def _unsplit_note(options: Options) -> str:
    """Return the note on why trials have no sequence parallelism."""
    stated, why = (_DISTRIBUTED, "the two exclude each other") if _DISTRIBUTED in options else (f"{_IMPL} local", "torch's norms refuse it")
    return f"`{stated}` without `{_SEQUENCE}`: trials leave sequence parallelism off, as {why}"


def _choices(extras: Mapping[str, Value], worded: Iterable[Parameter], *, splits: bool) -> dict[str, object]:
    """Return the parameters that vary only on request, at the values that the line states or its norms require.

    A value that the search space does not list opens its parameter. A layout is for one number of stages, so others have an even one.
    """
    found: dict[str, object] = {name: [value] for name, value in {**extras, **({} if splits else {"sequence_parallel": False})}.items()}
    beyond = [known.name for known in worded if extras.get(known.name, known.default) not in known.values and not known.open]
    found |= {name: {"values": [extras[name]], "open": True} for name in beyond}
    return found | ({_LAYOUT: [EVEN, extras[_LAYOUT]]} if _LAYOUT in extras else {})


def _kept_modules(options: Options, extras: Mapping[str, Value]) -> tuple[StatedFact, ...]:
    """Return the modules that selective recomputation recomputes, if no parameter has them."""
    given = options.get(_MODULES)
    if given is None or "recompute_modules" in extras:
        return ()
    return (StatedFact(name="recompute_modules", value=given.text, origin=given.origin),)


def _optimizer(options: Options) -> tuple[StatedFact, ...]:
    """Return SGD as a key of `[training]`, as predictions have its momentum."""
    if options.value(_OPTIMIZER) != "sgd":
        return ()
    return (StatedFact(name="optimizer", value="sgd", origin=options.origin(_OPTIMIZER)),)


def _unpredicted(options: Options, extras: Mapping[str, Value]) -> Iterator[str]:
    """Yield notes on what needs another amount of memory or time than predicted."""
    if (optimizer := options.value(_OPTIMIZER)) not in (*_LIKE_ADAMW, "sgd"):
        yield f"predictions take AdamW for `{_OPTIMIZER} {clipped(optimizer)}`, so its memory and its update may differ"
    if _LAYOUT in extras:
        yield f"predictions share the layers of `{megatron.STAGES} {clipped(str(extras[_LAYOUT]))}` evenly"
    if kept := _kept_modules(options, extras):
        yield f"`{_MODULES} {clipped(kept[0].value)}` stays, and predictions of selective recomputation recompute the attention alone"


def _in_order(words: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return options with the modules of recomputation in the order of the search space, as their order has no effect."""
    return {name: sorted(values) if name == _MODULES else values for name, values in words.items()}


def _origins(options: Options, extras: Mapping[str, Value]) -> dict[str, str]:
    """Return the origins of what options state."""
    names = {**megatron.SWITCHES, **{option: name for name, option in _OPTION_OF.items()}}
    names |= {"--bf16": "precision", "--fp16": "precision", "--ddp-bucket-size": "dp_bucket_mb"}
    names |= dict.fromkeys(("--recompute-granularity", "--recompute-activations", "--activations-checkpoint-method"), "recompute")
    names |= {"--num-layers-per-virtual-pipeline-stage": "model_chunks", "--use-distributed-optimizer": "zero_stage"}
    names |= {**dict.fromkeys(megatron.FSDP, "zero_stage"), "--data-parallel-sharding-strategy": "zero_stage"}
    found = {name: options.origin(option) for option, name in names.items() if option in options}
    found |= {"schedule": found["model_chunks"]} if "model_chunks" in found else {}
    return found | {name: "the options" for name in extras if name not in found}


def _degrees(options: Options) -> dict[str, int]:
    """Return the degrees that divide the ranks of the line."""
    return {name: options.number(option) or 1 for name, option in _DEGREES.items()}


def _devices(sources: LineSources, options: Options) -> LineDevices:
    """Return the devices; raises InputError if the degrees do not divide them."""
    devices, layout = sources.devices, _degrees(options)
    product = math.prod(layout.values())
    if devices.count is not None and devices.count % product:
        degrees = " x ".join(f"{name} {size}" for name, size in layout.items() if size > 1)
        more = "start at least that many ranks" if devices.count < product else "use a multiple of it"
        raise InputError(f"{degrees} needs {product} ranks, and the launch line starts {devices.count} ({devices.origin})", hint=more)
    return devices


def _settings(options: Options, devices: LineDevices, model: Mapping[str, Value]) -> dict[str, Value]:
    """Return the present configuration, by oppa's parameters."""
    degrees = _degrees(options)
    found: dict[str, Value] = {name: size for name, size in degrees.items() if name != "cp" or _DEGREES["cp"] in options}
    if devices.count is not None:
        found["dp"] = devices.count // math.prod(degrees.values())
    words = options.grouped()
    stated = megatron.settings_of(words, options.number, layers=int(model.get("layers", 0)))
    stated |= _layout(options, int(model["layers"])) or {} if model else {}
    found |= {"schedule": "1f1b", **stated, **megatron.interleaving(words, stated)}
    if "dp_bucket_mb" not in found and found["overlap_zero_comm"]:
        found |= megatron.grown_bucket(int(found.get("dp", 1)))
    without = ("global_batch",) if model else ("global_batch", "schedule", "model_chunks", "overlap_p2p", "dp_bucket_mb")
    return {name: value for name, value in found.items() if name not in without}  # the meaning has the batch, and options have the others


def _model(options: Options, sources: LineSources) -> tuple[dict[str, Value], dict[str, Value], list[str]]:
    """Return what the options state of the model, what is assumed, and notes."""
    if megatron.uses_fsdp(options.grouped()):
        return {}, {}, [_FSDP_NOTE]
    program = sources.line.program_name
    dimensions, kind, unread = model_facts(options.grouped(), program)
    if not states_architecture(dimensions) or "seq_len" not in dimensions:
        return {}, {}, []
    if any(option in options for option in _HYBRID) or "mamba" in program or "hybrid" in program:
        return {}, {}, ["the prior has no model of a hybrid of several kinds of layers"]
    if any(option in options for option in _ENCODERS):
        return {}, {}, ["the prior has no model of an encoder with a decoder"]
    defaults = _defaults()
    found: dict[str, Value] = {
        **dimensions,
        **{key_of(name): value for name, value in kind.items() if name not in defaults or value != defaults[name]},
    }
    found |= {name: kind[name] for name in ("ffn", "gated", "norm", "tied") if name in kind}
    if megatron_model.first_dense(options.grouped(), dimensions) is None:
        pattern = f"{megatron_model.LAYERS} {options.value(megatron_model.LAYERS)}"
        return {}, {}, [f"the prior has no model of the layers of `{clipped(pattern)}`"]
    if _layout(options, dimensions["layers"]) is None:
        return {}, {}, [_LAYOUT_NOTE]
    vocab = dimensions.get("vocab") or options.number("--padded-vocab-size") or _VOCABULARIES.get(options.value("--tokenizer-type"))
    vocab = vocab or _lines_of(sources, options.value("--vocab-file"))
    notes = [f"not a number: `{each}`" for each in unread]
    if vocab:
        return {**found, "vocab": vocab}, {}, notes
    return found, {"vocab": ASSUMED_VOCAB}, [*notes, VOCAB_NOTE]


def _layout(options: Options, layers: int) -> dict[str, Value] | None:
    """Return the parameters that a layout of stages sets; None if the search space has none for it."""
    return layout_settings(options, layers=layers, ranks=options.number(_DEGREES["pp"]) or 1)


def _lines_of(sources: LineSources, name: str) -> int | None:
    """Return the number of entries of a vocabulary in JSON; None if there is no such file."""
    path = sources.local_file(name)
    if path is None or path.suffix != ".json":
        return None
    try:
        return read_text(path).count('": ') or None
    except InputError:
        return None


def _defaults() -> dict[str, Value]:
    return {field.name: field.default for field in dataclasses.fields(Model) if field.default is not dataclasses.MISSING}


def _space(devices: LineDevices, global_batch: int, model: Mapping[str, Value]) -> SearchSpace:
    """Return the search space, whose words are compared with the options."""
    sizes = {"layers": 1, "hidden": 1, "heads": 1, "kv_heads": 1, "ffn": 1, "vocab": 1, "seq_len": 1, "experts": 1}
    given = {name: model.get(name, usual) for name, usual in sizes.items()}
    described = Model(name="model", **given)  # type: ignore[arg-type]
    cluster = Cluster(hosts=devices.hosts, devices_per_host=devices.per_host or 1, device="GPU", memory_limit_bytes=1)
    facts = facts_of(described, global_batch, cluster, Training(precision="bf16"))
    return read_space(read_text(catalog.find("search_spaces", SPACE)), name=SPACE, facts=facts)


def _options_of(words: object) -> set[str]:
    texts = [word for each in words.values() for word in each] if isinstance(words, Mapping) else list(words)  # type: ignore[call-overload]
    return {word for word in texts if word.startswith("--")}
