"""Understand a launch line of a program whose settings are keys: NeMo, axolotl, LLM-Foundry and others of `keyed_programs.toml`.

A key that the line states is changed there, and one of its file in a copy of the file. What neither states, and has no default, does not
vary, as a recipe of the program may state it.
"""

import fnmatch
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from oppa.errors import InputError
from oppa.problem.configuration import Value
from oppa.problem.file_keys import at, entries
from oppa.problem.space_file import divisors
from oppa.problem.stated_words import names_a_path
from oppa.problem.templates import spelled
from oppa.tuning.formats.transformers import stage_of
from oppa.tuning.launch_line.deepspeed_file import DeepSpeedFile
from oppa.tuning.launch_line.keyed_facts import model_of, overestimated, training_of, unpredicted
from oppa.tuning.launch_line.keyed_programs import keyed_programs
from oppa.tuning.launch_line.keyed_values import KeyedValues
from oppa.tuning.launch_line.meaning import ASSUMED_VOCAB, VOCAB_NOTE, EditedFile, LineDevices, Meaning
from oppa.tuning.launch_line.options import contradiction, require_consistent
from oppa.tuning.launch_line.sources import LineSources
from oppa.tuning.launch_line.templates_of import placeholders, templates, with_copy

_DEGREES = ("tp", "pp", "cp", "ep")
_FILE = "config"
"""Placeholder of the copy of the program's file."""
Assignments = Mapping[str, Any]
"""Templates by key, or values by the text of a parameter's value."""


def understand(sources: LineSources, *, evidence: str, name: str) -> Meaning:
    """Return the meaning of a line of a program.

    Raises:
        InputError: a key is unreadable, or the degrees do not divide the devices.
    """
    values = KeyedValues.of(sources, keyed_programs()[name])
    program = values.program
    require_consistent(values.options, program.keys.values())
    settings, origins = _settings(values, sources)
    dp = settings.get("dp")
    global_batch, batch_origin = _global_batch(values, None if dp is None else int(dp))
    model, model_origin, hints = model_of(values, sources)
    lacks_vocab = "layers" in model and "vocab" not in model
    assigned = _assigned(values, settings, sources, global_batch)
    placed = _Placed(values, sources)
    for parameter, assignments in assigned.items():
        placed.put(parameter, assignments)
    placed.put_trial()
    flags = () if any(flag.lstrip("-") in values.options for flag in program.flags) else program.flags[:1]
    return Meaning(
        framework=name,
        writes_as="plain",
        evidence=evidence,
        devices=sources.devices,
        model=model,
        model_origin=model_origin,
        assumed={"vocab": ASSUMED_VOCAB} if lacks_vocab else {},
        global_batch=global_batch,
        batch_origin=batch_origin,
        precision=_precision(values),
        settings=settings,
        origins=origins,
        words=tuple(placed.words()),
        arguments=placed.arguments,
        files=tuple(placed.files()),
        choices=_choices(values, assigned, model, sources) | {name: [settings[name]] for name in values.held if name in assigned},
        steps=program.steps,
        added=(*flags, *placed.added),
        paths=dict(_paths(values)),
        training=training_of(values, sources),
        unpredicted=tuple(unpredicted(values)),
        overestimated=tuple(overestimated(values, sources)),
        notes=(*_notes(values, sources, settings, assigned), *((VOCAB_NOTE,) if lacks_vocab else ())),
        hints=(*hints, *_hints(values, assigned, global_batch)),
        missing=sources.missing,
    )


def devices_of_program(sources: LineSources, name: str) -> LineDevices:
    """Return the devices of a program: a launcher's, else those that its own keys state.

    Raises:
        InputError: the program starts ranks on several hosts itself.
    """
    program, found = keyed_programs()[name], sources.devices
    if not program.devices:
        return found
    values = KeyedValues.of(sources, program)
    if sources.line.stage("launcher", "step") is not None:
        _compare_devices(values, found)
        return found
    inside = " ".join(word.text for word in sources.line.arguments)
    hosts = values.number(program.hosts) or _in_call("num_nodes", inside) or 1
    count = values.number(program.devices) or _in_call("num_gpus_per_node", inside)
    if hosts > 1:
        hint = "start its ranks by `srun` or `torchrun` in an allocation: `oppa tune -- srun -N ... python ...`"
        raise InputError(f"{program.title} starts the ranks of {hosts} hosts, and the launch line has no launcher for them", hint=hint)
    if count is None:
        return LineDevices()  # a recipe or a file that is not here states them
    return LineDevices(per_host=count, origin=values.stated(program.devices)[1] or "line")


def _compare_devices(values: KeyedValues, found: LineDevices) -> None:
    """Raise InputError if the program's keys state another number of ranks than the launcher starts."""
    program = values.program
    per_host, hosts = values.number(program.devices), values.number(program.hosts)
    stated = None if per_host is None else per_host * (hosts or found.hosts)
    if stated is not None and found.count is not None and stated != found.count:
        parts = ((program.devices, per_host), (program.hosts, hosts))
        shown = " and ".join(f"`{' '.join(program.words(key, number))}`" for key, number in parts if number)
        message = f"{shown} are {stated} ranks, and the launcher starts {found.count}"
        raise contradiction(message, hint="state the launcher's numbers there")


def _in_call(name: str, text: str) -> int | None:
    """Return the number of an argument in a call such as `llama3_70b(num_nodes=16)`."""
    match = re.search(rf"\(.*?\b{name}\s*=\s*(\d{{1,6}})\b.*?\)", text)
    return int(match[1]) if match else None


def _settings(values: KeyedValues, sources: LineSources) -> tuple[dict[str, Value], dict[str, str]]:
    """Return the present configuration, and the origins of what is stated.

    Raises:
        InputError: the degrees do not divide the devices, or state other ones.
    """
    keys, count = values.program.keys, sources.devices.count
    found: dict[str, Value] = {name: size for name in (*_DEGREES, "micro_batch") if name in keys and (size := values.number(keys[name]))}
    if found.get("ep") == 1:
        del found["ep"]
    origins = {name: values.stated(keys[name])[1] for name in found}
    origins |= {"precision": values.stated(values.program.precision["key"])[1]} if values.program.precision else {}
    for name, choices in values.choices.items():
        if (value := _present(values, choices)) is not None:
            found[name], origins[name] = value, values.stated(_deciding(choices))[1]
    for name, meanings in values.program.settled.items():
        if not values.program.has_settled(name, sources.line, count or 1):
            continue
        if (value := meanings.get(values.text(str(meanings.get("key", ""))), meanings.get("usual"))) is not None:
            found[name], origins[name] = value, values.stated(str(meanings.get("key", "")))[1]
    if values.program.sharding:
        stage, origin = _sharding(values, sources)
        found, origins = {**found, "zero_stage": stage}, {**origins, "zero_stage": origin}
    degrees = {name: int(found.get(name, 1)) for name in ("tp", "pp", "cp")}
    product = math.prod(degrees.values())
    if count is not None and count % product:
        shown = " x ".join(f"{name} {size}" for name, size in degrees.items() if size > 1)
        raise InputError(f"{shown} needs {product} ranks, and the launch line starts {count}", hint="start a multiple of it")
    stated = values.number(keys["dp"]) if "dp" in keys else None
    if stated is not None and count is not None and stated * product != count:
        message = f"`{keys['dp']}: {stated}` times the other degrees is {stated * product} ranks, and the launch line starts {count}"
        raise InputError(message, hint=f"state `{keys['dp']}: {count // product}`, or start {stated * product} ranks")
    if count is not None and all(name in found for name in ("tp", "pp", "cp") if name in keys):
        found["dp"] = count // product
        batch = values.number(keys["global_batch"]) if values.program.reduces and "micro_batch" in found else None
        found |= {"micro_batch": min(int(found["micro_batch"]), max(1, batch * product // count))} if batch else {}
    return found, origins


def _sharding(values: KeyedValues, sources: LineSources) -> tuple[int, str]:
    """Return the ZeRO stage of keys that are named as those of Transformers, and its origin."""
    named, origin = values.stated("deepspeed")
    if isinstance(named, str) and sources.local_file(named) is not None:
        file = DeepSpeedFile(text=named, shown=named, values=sources.contents(named), sources=sources)
        return file.stage, file.shown
    table, stated = values.stated("fsdp_config")
    fsdp, by_fsdp = values.stated("fsdp")
    if table or fsdp or values.stated("fsdp_version")[0]:
        kept = " ".join(map(str, fsdp)) if isinstance(fsdp, list) else str(fsdp or "true")
        return stage_of({"fsdp": kept, "fsdp_config": table if isinstance(table, Mapping) else {}}), stated or by_fsdp
    return 0, origin


def _deciding(choices: Mapping[str, Assignments]) -> str:
    """Return the key that decides which value of a parameter is present."""
    return next(iter(next(iter(choices.values()))))


def _present(values: KeyedValues, choices: Mapping[str, Assignments]) -> Value | None:
    """Return the value of a parameter whose keys are stated; None if none is, or if it is another one."""
    for value, assignments in choices.items():
        key, wanted = next(iter(assignments.items()))
        found, origin = values.stated(key)
        same = "null" if found is None else spelled(found).lower()
        if origin and same == spelled(wanted).lower():
            return int(value) if value.isdigit() else value
    return None


def _global_batch(values: KeyedValues, dp: int | None) -> tuple[int | None, str]:
    """Return the global batch and its origin; None if it is not known."""
    keys = values.program.keys
    if "global_batch" in keys:
        return values.number(keys["global_batch"]), values.stated(keys["global_batch"])[1]
    micro, steps = values.number(keys["micro_batch"]), values.number(keys["accumulate"])
    if micro is None or steps is None or dp is None:
        return None, ""
    return micro * steps * dp, f"{micro} x {steps} x {dp} ({values.stated(keys['micro_batch'])[1]})"


def _assigned(values: KeyedValues, settings: Mapping[str, Value], sources: LineSources, global_batch: int | None) -> dict[str, Assignments]:
    """Return the keys of each parameter that may vary, in the order of the parameters."""
    program, keys = values.program, values.program.keys
    has_stages = any(values.text(key) not in ("", "1", "null") for key in program.pipeline)
    stays = {*program.fixed, *(("pp",) if has_stages else ()), *(("tp", "pp") if int(settings.get("cp", 1)) > 1 else ())}
    found: dict[str, Assignments] = {}
    for name in ("tp", "pp"):
        if name in settings and name not in stays:
            found[name] = {keys[name]: f"{{{name}}}"}
    if "tp" in found and values.stated(program.with_tp)[0] is True:  # what the line leaves open stays open
        sizes = divisors(sources.devices.count or 1)
        found["tp"] = {keys["tp"]: {str(size): size for size in sizes}, program.with_tp: {str(size): size > 1 for size in sizes}}
    if "dp" in keys:
        found["dp"] = {keys["dp"]: "{dp}"}
    if "micro_batch" in settings and global_batch:
        accumulated = {keys["accumulate"]: "{num_microbatches}"} if "accumulate" in keys else {}
        found["micro_batch"] = {keys["micro_batch"]: "{micro_batch}", **accumulated}
    for name, choices in values.choices.items():
        if name in settings and str(settings[name]) in choices:
            known = dict.fromkeys(key for assignments in choices.values() for key in assignments)
            found[name] = {key: {value: each[key] for value, each in choices.items() if key in each} for key in known}
    return found


def _choices(
    values: KeyedValues, assigned: Mapping[str, Assignments], model: Mapping[str, Value], sources: LineSources
) -> dict[str, list[Value]]:
    """Return the values of the parameters that have a choice of their own. Tensor parallelism divides key and value heads."""
    varied = {name: choices for name, choices in values.choices.items() if name in assigned}
    found: dict[str, list[Value]] = {
        name: [int(value) if value.isdigit() else value for value in choices] for name, choices in varied.items()
    }
    if "tp" in assigned and "kv_heads" in model and sources.devices.count:
        found["tp"] = [size for size in divisors(sources.devices.count) if int(model["kv_heads"]) % size == 0]
    return found


class _Placed:
    """Places keys in the line or in a copy of the file, where each is stated."""

    def __init__(self, values: KeyedValues, sources: LineSources) -> None:
        self._values, self._sources = values, sources
        self._replaced: set[str] = set()
        self._keys: dict[str, Any] = {}
        self.arguments: dict[str, Any] = {}
        self.added: tuple[str, ...] = ()

    def put_trial(self) -> None:
        """Place what every trial states. A trial's folder is stated in the line, as the winner's file must not have it."""
        values = self._values
        if not values.program.form and values.file is None:
            return
        folders = {key: to for key, to in values.program.trial.items() if isinstance(to, str) and placeholders(to)}
        off = {key: to for key, to in values.program.off.items() if values.stated(key)[1]}
        others = {key: to for key, to in {**values.program.trial, **off}.items() if key not in folders}
        self.put("", {key: to for key, to in others.items() if values.in_line(key) or at(values.values, key) != to})
        in_file = {key for key in folders if values.file is not None and at(values.values, key) is not None and not values.in_line(key)}
        self.put("", {key: to for key, to in folders.items() if key not in in_file}, in_line=True)
        if values.of_hydra:
            disabled = (key for key, _ in entries(values.values) if _use(values, key) == "disable" and not values.in_line(key))
            self.put("", dict.fromkeys(disabled, "null"))

    def put(self, parameter: str, assignments: Assignments, *, in_line: bool = False) -> None:
        """Place the keys of a parameter; without one, the values are the same in all trials."""
        in_file = {key for key in assignments if self._values.file is not None and not self._values.in_line(key) and not in_line}
        for key in (key for key in assignments if key in in_file):
            to = assignments[key]
            self._keys[key] = {parameter: dict(to)} if isinstance(to, Mapping) else to
        words = {key: to for key, to in assignments.items() if key not in in_file}
        self._replaced |= {*words}
        state = self._values.words
        if not parameter:
            self.added += tuple(word for key, to in words.items() for word in state(key, to))
        elif any(isinstance(to, Mapping) for to in words.values()):
            texts = list(dict.fromkeys(text for to in words.values() for text in to))
            self.arguments[parameter] = {
                text: [word for key, to in words.items() if text in to for word in state(key, to[text])] for text in texts
            }
        elif words:
            self.arguments[parameter] = [word for key, to in words.items() for word in state(key, to)]

    def words(self) -> list[str]:
        """Return the templates of the program's words, with a placeholder for its file."""
        words, named = templates(self._values.options.without(self._replaced)), self._values.file
        return with_copy(words, named.text, _FILE) if named is not None else words

    def files(self) -> Iterator[EditedFile]:
        """Yield the program's file, of which trials get copies."""
        values = self._values
        if values.file is not None:
            present = {key: values.stated(key)[0] for key in self._keys}
            yield EditedFile(name=_FILE, path=self._sources.line.path(values.file.text), keys=self._keys, present=present)


def _precision(values: KeyedValues) -> str:
    """Return the precision; empty if nothing states a known one."""
    declared = values.program.precision
    return str(declared["values"].get(values.text(declared["key"]), "")) if declared else ""


def _paths(values: KeyedValues) -> Iterator[tuple[str, str]]:
    """Yield what the program does with each path and whole table that the line or the file states, and with what trials state."""
    yield from ((name, kind) for name, kind in values.program.paths.items() if isinstance(at(values.values, name), Mapping))
    stated = [word.text.partition("=")[0] for option in values.options.all for word in option.words[:1]]
    stated += [word.text for word in values.options.positional]
    stated += [key for key, _ in entries(values.values)] if values.file is not None else []
    for name in dict.fromkeys(stated):
        if kind := _use(values, name):
            yield name, kind
    for key, to in {**values.program.trial, **values.program.off}.items():
        if names_a_path(key, str(to)) and not placeholders(str(to)):
            in_line = values.program.words(key, to)[0].partition("=")[0] if values.program.form else key
            yield from dict.fromkeys((key, in_line), "read").items()


def _use(values: KeyedValues, name: str) -> str:
    """Return what the program does with a path; empty if that is not declared."""
    return next((kind for pattern, kind in values.program.paths.items() if fnmatch.fnmatchcase(name, pattern)), "")


def _notes(values: KeyedValues, sources: LineSources, settings: Mapping[str, Value], assigned: Mapping[str, Assignments]) -> Iterator[str]:
    """Yield notes on what stays as it is."""
    for name in _DEGREES:
        if name not in assigned and int(settings.get(name, 1)) > 1:
            yield f"{name} = {settings[name]} stays as it is"
    yield from (f"{name} = {settings[name]} stays as it is: `{key}` requires it" for name, key in values.held.items() if name in assigned)
    for name, choices in values.choices.items():
        key = _deciding(choices)
        if values.stated(key)[1] and name not in settings:
            yield f"`{key} = {values.text(key)}` stays as it is, and predictions do not have it"
    accelerate = sources.line.stage("accelerate")
    if accelerate is not None and (named := accelerate.value("config-file")) is not None:
        yield f"`{named.text}` of accelerate stays as it is: {values.program.title}'s own keys are read"


def _hints(values: KeyedValues, assigned: Mapping[str, Assignments], global_batch: int | None) -> Iterator[str]:
    """Yield which keys to state, so that more may vary."""
    program, keys = values.program, values.program.keys

    def example(key: str) -> str:
        return " ".join(program.words(key, "...")) if program.form else f"{key}: ..."

    source = f"`{values.shown_file}`" if values.shown_file else "its configuration"
    wanted = [name for name in ("global_batch", "micro_batch", "accumulate") if name in keys]
    for name in wanted if "micro_batch" not in assigned else ():
        found = values.text(keys[name])
        if found and values.number(keys[name]) is None:
            yield f"state a number as `{keys[name]}`, so that the micro-batch may vary: it is `{found}`"
        elif not found:
            yield f"state `{example(keys[name])}`, so that the micro-batch may vary: what {source} states is not known"
    for name in ("tp", "pp", "cp"):
        if name in keys and not values.stated(keys[name])[1]:
            why = "the ranks of a replica are known" if name in (*program.fixed, "cp") else "it may vary"
            yield f"state `{example(keys[name])}`, so that {why}: what {source} states is not known"
