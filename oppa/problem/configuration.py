"""Define a parallelism configuration: every parameter of OPPA's Table 1, with the field's names.

A parameter that a choice makes inactive has its default, so that no two configurations mean the same run.
"""

import dataclasses
import re
import zlib
from collections.abc import Mapping
from typing import Any, Self


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Describes one way to run the job (OPPA App. C.1, Table 1). `_mb` is MiB, as in the frameworks' own options."""

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

    @property
    def devices(self) -> int:
        """Return the number of ranks of the job."""
        return self.dp * self.tp * self.pp

    @property
    def num_microbatches(self) -> int:
        """Return the micro-batches per optimizer step on each data-parallel rank (COPUS's gradient-accumulation steps)."""
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def id(self) -> str:
        """Return a readable and unique name, such as `dp2_tp1_pp2_z1_mbs4_mc2_rcfull`.

        A short hash at its end encodes other values that are not the default.
        """
        parts = [f"dp{self.dp}", f"tp{self.tp}", f"pp{self.pp}"]
        parts += [f"ep{self.ep}"] if self.ep > 1 else []
        parts += [f"z{self.zero_stage}", f"mbs{self.micro_batch}"]
        parts += [f"mc{self.model_chunks}"] if self.model_chunks > 1 else []
        parts += [self.schedule] if self.schedule != "1f1b" else []
        parts += [f"rc{self.recompute}"] if self.recompute != "none" else []
        parts += [f"sl{self.stage_layout}"] if self.stage_layout == "balanced" else []
        rest = {name: getattr(self, name) for name in _HASHED if getattr(self, name) not in (_DEFAULTS[name], "balanced")}
        parts += [f"{zlib.crc32(repr(sorted(rest.items())).encode()):08x}"[:6]] if rest else []
        return "_".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values by field name, as they are written to JSON."""
        return {name: getattr(self, name) for name in self.__slots__}  # `asdict` takes ten times as long, and messages hold several

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the configuration that `to_dict` wrote."""
        return cls(**values)

    @classmethod
    def checked(cls, values: Mapping[str, Any]) -> Self:
        """Return a configuration from values that others may have edited.

        Raises:
            TypeError: a parameter is unknown, missing or of another type.
            ValueError: a number is negative, not finite or too large, or a degree is 0.
        """
        found = cls(**values)
        for field in dataclasses.fields(cls):
            value = getattr(found, field.name)
            kind = int | float if field.type is float else field.type
            if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):  # type: ignore[arg-type]
                raise TypeError(f"`{field.name} = {value!r:.100}`")
            if not isinstance(value, str) and not (field.name in _DEGREES) <= value < 1 << 53:
                raise ValueError(f"`{field.name} = {value!r:.100}`")
        return found


_DEGREES = ("dp", "tp", "pp", "ep", "global_batch", "micro_batch", "model_chunks")
"""Parameters that are at least 1."""
_HASHED = ("dp_bucket_mb", "zero_bucket_mb", "overlap_zero_comm", "overlap_zero_allgather", "overlap_p2p", "stage_layout")
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Configuration)}
PARAMETERS = tuple(_DEFAULTS)
_SHORT = {"dp": "dp", "tp": "tp", "pp": "pp", "ep": "ep", "z": "zero_stage", "mbs": "micro_batch", "mc": "model_chunks"}


def parse_id(id: str) -> dict[str, int | str] | None:
    """Return the parameters that an id states, with defaults for those that it omits; None for a text that is not an id.

    The values that a hash encodes are not returned.
    """
    found: dict[str, int | str] = {"ep": 1, "model_chunks": 1, "schedule": "1f1b", "recompute": "none", "stage_layout": "even"}
    for part in id.split("_"):
        match = re.fullmatch(r"([a-z]+)([0-9]+)", part)
        if match and match[1] in _SHORT:
            found[_SHORT[match[1]]] = int(match[2])
        elif part.startswith("rc"):
            found["recompute"] = part.removeprefix("rc")
        elif part.startswith("sl"):
            found["stage_layout"] = part.removeprefix("sl")
        elif not re.fullmatch(r"[0-9a-f]{6}", part):
            found["schedule"] = part
    return found if found.keys() >= {"dp", "tp", "pp", "zero_stage", "micro_batch"} else None
