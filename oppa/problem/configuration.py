"""Define a parallelism configuration: the parameters of OPPA's Table 1, with the field's names, and those that a search space adds.

A parameter that a choice makes inactive has its default, so that no two configurations mean the same run.
"""

import dataclasses
import functools
import math
import re
import zlib
from collections.abc import Mapping
from typing import Any, Self, get_type_hints

from oppa.problem.bounds import LARGEST_STORED, LONGEST_TEXT

Value = bool | int | float | str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExtraValue:
    """Describes the value of a degree or a knob that only the search space of the job declares: it has no field of its own."""

    name: str
    value: Value
    degree: bool = False
    """True for a parallel degree: the product of all degrees is the number of devices."""
    short: str = ""
    """Its part of an id; empty: the name."""

    @property
    def facts(self) -> dict[str, Any]:
        """Return what else than the value there is to store, as JSON has it."""
        return {**({"degree": True} if self.degree else {}), **({"short": self.short} if self.short else {})}

    def __repr__(self) -> str:
        """Return a text that no version may change, because the noise of simulated trials depends on it."""
        return f"Knob(name={self.name!r}, value={self.value!r}, degree={self.degree!r}, short={self.short!r})"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Describes one way to run the job (OPPA App. C.1, Table 1). `_mb` is MiB, as in the frameworks' own options.

    `configuration["NAME"]` is the value of any parameter, with a field or among the extras.
    """

    dp: int
    tp: int = 1
    pp: int = 1
    ep: int = 1
    global_batch: int
    micro_batch: int
    model_chunks: int = 1
    zero_stage: int = 0
    dp_bucket_mb: float = 25
    zero_bucket_mb: float = 25
    overlap_zero_comm: bool = False
    overlap_zero_allgather: bool = False
    overlap_p2p: bool = False
    schedule: str = "1f1b"
    recompute: str = "none"
    stage_layout: str = "even"
    """Parts of the model on each pipeline stage: `even`, `balanced`, or stage by stage (`oppa.pipeline.stage_layout`)."""
    extras: tuple[ExtraValue, ...] = ()
    """Further parameters, in the order of the search space."""

    def __repr__(self) -> str:
        """Return the text of all fields, without the extras if there are none: the noise of simulated trials depends on it."""
        given = [f"{name}={getattr(self, name)!r}" for name in PARAMETERS] + ([f"knobs={self.extras!r}"] if self.extras else [])
        return f"Configuration({', '.join(given)})"

    def __getitem__(self, name: str) -> Value:
        """Return the value of a parameter; raises KeyError for an unknown name."""
        if name in _DEFAULTS:
            return getattr(self, name)  # type: ignore[no-any-return]
        for extra in self.extras:
            if extra.name == name:
                return extra.value
        raise KeyError(name)

    def get(self, name: str, default: Value) -> Value:
        """Return the value of a parameter, or the default if the configuration has no such parameter."""
        return self[name] if name in _DEFAULTS or any(extra.name == name for extra in self.extras) else default

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all parameters."""
        return (*PARAMETERS, *(extra.name for extra in self.extras)) if self.extras else PARAMETERS

    @property
    def devices(self) -> int:
        """Return the number of ranks of the job: the product of all degrees."""
        return self.dp * self.tp * self.pp * math.prod(int(extra.value) for extra in self.extras if extra.degree)

    @property
    def num_microbatches(self) -> int:
        """Return the micro-batches per optimizer step on each data-parallel rank (COPUS's gradient-accumulation steps)."""
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def total_microbatches(self) -> int:
        """Return the micro-batches per optimizer step on all data-parallel ranks together."""
        return self.dp * self.num_microbatches

    @property
    def has_one_micro_batch(self) -> bool:
        """Return whether a step is a single micro-batch over all data-parallel ranks."""
        return self.total_microbatches == 1

    @property
    def batch_per_rank(self) -> int:
        """Return the sequences per optimizer step on each data-parallel rank."""
        return self.global_batch // self.dp

    @property
    def dp_shard_size(self) -> int:
        """Return the data-parallel ranks over which state is sharded, if it is: all, or those of one of `dp_replicate` replicas (HSDP)."""
        return self.dp // max(1, int(self.get("dp_replicate", 1)))

    @property
    def id(self) -> str:
        """Return a readable and unique name, such as `dp2_tp1_pp2_z1_mbs4_mc2_rcfull`.

        Extra parameters follow as `cp2`; ids with some lack `tp1`, `pp1`, `z0` and `mbs1`. A short hash at the end encodes other values
        that are not the default. It also encodes texts that no file name can have, or that would make the id too long for one.
        """
        every = not self.extras
        parts = [f"dp{self.dp}"]
        parts += [f"tp{self.tp}"] if every or self.tp != 1 else []
        parts += [f"pp{self.pp}"] if every or self.pp != 1 else []
        parts += [f"ep{self.ep}"] if self.ep > 1 else []
        parts += [f"z{self.zero_stage}"] if every or self.zero_stage else []
        parts += [f"mbs{self.micro_batch}"] if every or self.micro_batch != 1 else []
        parts += [f"mc{self.model_chunks}"] if self.model_chunks > 1 else []
        rest = {name: getattr(self, name) for name in _HASHED if getattr(self, name) not in (_DEFAULTS[name], "balanced")}
        for name, prefix in (("schedule", ""), ("recompute", "rc")):
            if (value := getattr(self, name)) != _DEFAULTS[name]:
                _add(parts, rest, name, prefix, value)
        parts += [f"sl{self.stage_layout}"] if self.stage_layout == "balanced" else []
        for extra in self.extras:
            _add(parts, rest, extra.name, extra.short or extra.name, extra.value)
        parts += [f"{zlib.crc32(repr(sorted(rest.items())).encode()):08x}"[:6]] if rest else []
        return "_".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values by name, as they are written to JSON; `knobs` has the other facts of the extras."""
        values = {name: getattr(self, name) for name in PARAMETERS}  # `asdict` takes ten times as long, and messages hold several
        if self.extras:
            values |= {extra.name: extra.value for extra in self.extras}
            facts = {extra.name: extra.facts for extra in self.extras if extra.facts}
            values |= {FACTS: facts} if facts else {}
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the configuration that `to_dict` wrote; raises TypeError if values are missing, or are no table."""
        if not isinstance(values, Mapping):
            raise TypeError(f"`{values!r:.100}` is not a table")
        if values.keys() <= _DEFAULTS.keys():
            return cls(**values)
        facts = values.get(FACTS) or {}  # some older files have an empty list
        if not isinstance(facts, Mapping) or not all(isinstance(each, Mapping) for each in facts.values()):
            raise TypeError(f"`{FACTS} = {facts!r:.100}` is not a table of tables")
        others = (name for name in values if name not in _DEFAULTS and name != FACTS)
        extras = tuple(ExtraValue(name=name, value=values[name], **facts.get(name, {})) for name in others)
        return cls(**{name: value for name, value in values.items() if name in _DEFAULTS}, extras=extras)

    @classmethod
    def checked(cls, values: Mapping[str, Any]) -> Self:
        """Return a configuration from values that others may have edited.

        Raises:
            TypeError: a parameter is missing, not a parameter's name, or of another type.
            ValueError: a number is negative, not finite or too large, or a degree is 0.
        """
        found = cls.from_dict(values)
        for name, kind in kinds().items():
            value = getattr(found, name)
            if not _is_of(value, kind):
                raise TypeError(f"`{name} = {value!r:.100}`")
            if not isinstance(value, str) and not (name in _AT_LEAST_1) <= value < LARGEST_STORED:
                raise ValueError(f"`{name} = {value!r:.100}` is {'too large' if value > 1 else 'not positive'}")
        for extra in found.extras:
            if not is_name(extra.name) or not isinstance(extra.degree, bool) or not is_short(extra.short):
                raise TypeError(f"`{extra.name!r:.100}` is not a parameter")
            if not is_value(extra.value) or (extra.degree and (type(extra.value) is not int or extra.value < 1)):
                raise ValueError(f"`{extra.name} = {extra.value!r:.100}`")
        return found


FACTS = "knobs"
"""Key of JSON that has the facts of extra values."""
_AT_LEAST_1 = ("dp", "tp", "pp", "ep", "global_batch", "micro_batch", "model_chunks")
"""Parameters that are at least 1."""
_HASHED = ("dp_bucket_mb", "zero_bucket_mb", "overlap_zero_comm", "overlap_zero_allgather", "overlap_p2p", "stage_layout")
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Configuration) if field.name != "extras"}
PARAMETERS = tuple(_DEFAULTS)
"""Parameters that have fields; a search space may declare others."""
SHORTS = {"dp": "dp", "tp": "tp", "pp": "pp", "ep": "ep", "z": "zero_stage", "mbs": "micro_batch", "mc": "model_chunks"}
_IN_IDS = re.compile(r"[A-Za-z0-9.+-]{1,40}")
_LONGEST_ID = 200
"""Most characters of an id, whose trial has a folder of this name: file systems take 255 bytes."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


def _add(parts: list[str], rest: dict[str, Value], name: str, prefix: str, value: Value) -> None:
    """Add a value to the parts of an id, or else to the values that its hash encodes."""
    text = f"{prefix}{text_in_ids(value)}"
    if _IN_IDS.fullmatch(text_in_ids(value)) and sum(map(len, parts)) + len(parts) + len(text) <= _LONGEST_ID:
        parts.append(text)
    else:
        rest[name] = value


def text_in_ids(value: Value) -> str:
    """Return a value as ids have it: `true`, not `True`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_name(name: object) -> bool:
    """Return whether a parameter can have this name: letters, digits and `_`."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def is_short(short: object) -> bool:
    """Return whether a knob can have this part of an id, which becomes part of a file's name; "" for its name."""
    return isinstance(short, str) and re.fullmatch("([A-Za-z][A-Za-z0-9]{0,20})?", short) is not None


@functools.cache
def kinds() -> dict[str, type]:
    """Return the type of each parameter that has a field."""
    hints = get_type_hints(Configuration)
    return {name: hints[name] for name in PARAMETERS}


def is_value(value: object) -> bool:
    """Return whether an extra parameter can have this value: true, false, a number within the bounds, or a printable text."""
    if isinstance(value, str):
        return value.isprintable() and 0 < len(value) <= LONGEST_TEXT
    return isinstance(value, bool) or (isinstance(value, int | float) and -LARGEST_STORED < value < LARGEST_STORED)


def _is_of(value: object, kind: type) -> bool:
    """Return whether a value has a type, as JSON counts: a whole number may be meant as a float, and `true` is no number."""
    return type(value) is kind or (kind is float and type(value) is int)


def parse_id(id: str, *, extras: bool = False) -> dict[str, int | str] | None:
    """Return the parameters that an id states, with defaults for those that it omits; None for a text that is not an id.

    The values that a hash encodes are not returned.

    Args:
        id: The id, without its extra parameters.
        extras: Whether it had some.
    """
    found: dict[str, int | str] = {"ep": 1, "model_chunks": 1, "schedule": "1f1b", "recompute": "none", "stage_layout": "even"}
    if extras:
        found |= {"tp": 1, "pp": 1, "zero_stage": 0, "micro_batch": 1}
    for part in id.split("_"):
        match = re.fullmatch(r"([a-z]+)([0-9]{1,18})", part)
        if match and match[1] in SHORTS:
            found[SHORTS[match[1]]] = int(match[2])
        elif part.startswith("rc"):
            found["recompute"] = part.removeprefix("rc")
        elif part.startswith("sl"):
            found["stage_layout"] = part.removeprefix("sl")
        elif not re.fullmatch(r"[0-9a-f]{6}", part):
            found["schedule"] = part
    return found if found.keys() >= {"dp", "tp", "pp", "zero_stage", "micro_batch"} else None
