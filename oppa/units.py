"""Parse quantities such as `"80 GiB"` and format them as `1.2 s`; no other module does.

Inside oppa everything is in SI base units and bytes.
"""

import math
import re
from collections.abc import Sequence

from oppa.errors import InputError

BYTES = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMGT", 1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
BYTES_PER_S = {
    **{f"{unit}/s": float(size) for unit, size in BYTES.items()},
    **{f"{prefix}bit": 1000.0**power / 8 for power, prefix in enumerate(("", "k", "M", "G", "T"))},
}
MIB, GIB = 1024**2, 1024**3

_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z/]+)\s*")


def _parse(text: str, units: dict[str, float] | dict[str, int], kind: str) -> float:
    match = _QUANTITY.fullmatch(text)
    lowered = {name.lower(): size for name, size in units.items()}
    if match is None or match[2].lower() not in lowered:
        raise InputError(f"`{text}` is not {kind}", hint=f"write a number and one of {', '.join(units)}")
    amount = float(match[1]) * lowered[match[2].lower()]
    if math.isinf(amount):
        raise InputError(f"`{text}` is too large for {kind}", hint="write a smaller number")
    return amount


def parse_bytes(text: str) -> int:
    """Return the bytes of a size such as `"80 GiB"`; raises InputError if the text is not one."""
    return round(_parse(text, BYTES, "a size"))


def parse_seconds(text: str) -> float:
    """Return the seconds of a duration such as `"10 min"`; raises InputError if the text is not one."""
    return _parse(text, SECONDS, "a duration")


def parse_bandwidth(text: str) -> float:
    """Return the bytes per second of `"25 GB/s"` or `"200 Mbit"` (per second); raises InputError if the text is no bandwidth."""
    return _parse(text, BYTES_PER_S, "a bandwidth")


def format_bytes(count: float) -> str:
    """Return bytes as text, such as `412 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.3g} {unit}" if count < 100 else f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def format_batch(global_batch: int, local_batches: Sequence[int] = ()) -> str:
    """Return a global batch as text, with each worker's batch if given: `batch 64 as 40, 24`."""
    shares = f" as {', '.join(map(str, local_batches))}" if local_batches else ""
    return f"batch {global_batch}{shares}"


def format_bandwidth(bytes_per_s: float) -> str:
    """Return a link's bandwidth as text, such as `200 Mbit/s`."""
    bits_per_s = bytes_per_s * 8
    for size, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if bits_per_s >= size:
            return f"{bits_per_s / size:.3g} {prefix}bit/s"
    return f"{bits_per_s:.3g} bit/s"


def format_number(value: float) -> str:
    """Return a number with three significant digits, and all digits before the decimal point."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}"  # `#.3g` would write 100 as `100.`


def format_uncertain(value: float, stddev: float) -> str:
    """Return a value with its standard deviation to the same number of decimals: `12.3 ± 0.2`."""
    text = format_number(value)
    return f"{text} ± {stddev:.{len(text.partition('.')[2])}f}"


def format_seconds(seconds: float) -> str:
    """Return seconds as text: `85 ms`, `1.2 s`, `3 min 05 s`, `2 h 10 min`, `14 d 12 h`."""
    if seconds < 0.9995:  # three digits of more milliseconds are a second
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest:02d} s"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest:02d} min" if hours < 100 else f"{hours // 24:,} d {hours % 24:02d} h".removesuffix(" 00 h")


def format_count(count: float) -> str:
    """Return a count as text: `1.24 B`, `350 M`, `12 k`."""
    for size, suffix in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if abs(count) >= 0.9995 * size:  # three digits of less
            return f"{count / size:.3g}{suffix}"
    return f"{count:.3g}"


def with_noun(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless it is one: `1 trial`, `24 trials`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_hours(hours: float) -> str:
    """Return hours of devices as text: `0.0123`, `3.28`, `3,277`."""
    return f"{hours:,.0f}" if hours >= 99.95 else f"{hours:.3g}"


def format_money(amount: float, currency: str) -> str:
    """Return an amount of money as text: `8.19 EUR`, `12,400 EUR`; an amount below a cent has two significant digits."""
    size = abs(amount)
    number = f"{amount:,.0f}" if size >= 9999.5 else f"{amount:,.2f}" if size >= 0.01 or not amount else f"{amount:.2g}"
    return f"{number} {currency}"
