"""Print the figures of measured devices and links with those of the catalogue."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from oppa.cli.views import style
from oppa.units import format_bytes, format_number

if TYPE_CHECKING:
    from oppa.launchers.measurement.derived import DerivedHardware
    from oppa.launchers.measurement.figures import Figure, HardwareMeasurement
    from oppa.launchers.measurement.nodes import SlowNode

Row = tuple[str, str, str, str, str, str]
_SCALES = {"Tflop/s": 1e12, "Gflop/s": 1e9, "GB/s": 1e9, "us": 1e-6}


def print_measurement(found: "HardwareMeasurement", derived: "DerivedHardware") -> None:
    """Print what was measured and each figure: its median, its range, and the catalogue's."""
    known = derived.known.name
    hosts = "1 host" if found.hosts == 1 else f"{found.hosts} hosts"
    style.out().print(f"[bold]device[/]  {escape(found.device)}, {format_bytes(found.memory_bytes)}; {hosts} x {found.devices_per_host}")
    style.out().print(f"[bold]with[/]    {escape(found.software)}\n")
    table = style.table(("what", "unit", ">measured", ">range", f">catalogue ({known})", ">share"))
    for row in _rows(found, derived):
        table.add_row(*row)
    style.out().print(table)


def print_nodes(found: "HardwareMeasurement", slow: "Sequence[SlowNode]") -> None:
    """Print the rates of each node, which of them are slow, and how to set these apart; nothing for a single host."""
    if not found.nodes:
        return
    from oppa.launchers.measurement.nodes import FALSE_ALARM, FEWEST, names

    table = style.table(("node", *(f">{_name(each)}, {_unit(each)}" for each in found.nodes[0].figures)))
    marked = {(each.name, each.figure.kind) for each in slow}
    for node in found.nodes:
        cells = (f"[red]{_rate(each)} slow[/]" if (node.name, each.kind) in marked else _rate(each) for each in node.figures)
        table.add_row(escape(node.name), *cells)
    style.out().print("\n[bold]nodes[/], each with its slowest device\n", table)
    for each in slow:
        style.out().print(f"[bold]slow[/]     {escape(each.name)}: {each.share:.0%} of the other nodes' rate, {_name(each.figure)}")
    if slow:
        listed = escape(",".join(names(slow)))
        style.out().print(f"[bold]exclude[/]  oppa tune ... --set launcher.options.exclude={listed}", soft_wrap=True)
    elif len(found.nodes) < FEWEST:
        style.out().print(f"[bold]slow[/]     unknown: {len(found.nodes)} nodes do not tell which is slow; measure {FEWEST} or more")
    else:
        style.out().print(f"[bold]slow[/]     none, at a chance of {FALSE_ALARM:.0%} to name one if all are alike")


def _rate(figure: "Figure") -> str:
    return _shown(figure.median, _unit(figure))


def _rows(found: "HardwareMeasurement", derived: "DerivedHardware") -> Iterator[Row]:
    from oppa.launchers.measurement.figures import HOST, NETWORK

    yield from (_row(figure, derived) for figure in found.figures)
    links = {
        HOST: ("latency of a hop within a host", derived.hardware.intra_host, derived.known.intra_host),
        NETWORK: ("latency of a hop between hosts", derived.hardware.inter_host, derived.known.inter_host),
    }
    for scope, (what, ours, theirs) in links.items():
        if scope in derived.measured:
            yield what, "us", _shown(ours.latency_s, "us"), "", _shown(theirs.latency_s, "us"), _share(ours.latency_s, theirs.latency_s)


def _row(figure: "Figure", derived: "DerivedHardware") -> Row:
    unit = _unit(figure)
    known = _known(figure, derived)
    low, high = (_shown(bound(figure.samples), unit) for bound in (min, max))
    catalogue, share = ("-", "") if known is None else (_shown(known, unit), _share(figure.median, known))
    return _name(figure), unit, _shown(figure.median, unit), f"{low} - {high}", catalogue, share


def _unit(figure: "Figure") -> str:
    from oppa.launchers.measurement.figures import MATMUL

    if not figure.work:
        return "us"
    if figure.what == MATMUL:
        return "Tflop/s" if figure.median > 1e12 else "Gflop/s"
    return "GB/s"


def _name(figure: "Figure") -> str:
    from oppa.launchers.measurement.figures import HOST, MATMUL, MEMORY, NETWORK, SEND

    size = format_bytes(figure.payload_bytes)
    if figure.what == MATMUL:
        return f"matrix product, {figure.detail}"
    if figure.what == MEMORY:
        return "memory, read and write"
    if figure.what == SEND:
        where = "between hosts" if figure.detail == NETWORK else f"ranks {figure.detail}"
        return f"point-to-point of {size}, {where}"
    if figure.ranks == 1:
        return f"copy of {size}, {figure.what}"
    where = f"{figure.ranks} devices of a host" if figure.detail == HOST else f"{figure.ranks} hosts"
    return f"{figure.what} of {size}, {where}"


def _known(figure: "Figure", derived: "DerivedHardware") -> float | None:
    """Return the catalogue's figure; None if it has none."""
    from oppa.launchers.measurement.figures import MATMUL, MEMORY, NETWORK

    known = derived.known
    if not figure.work:
        return None
    if figure.what == MATMUL:
        return known.matmul_flops_per_s.get(figure.detail)
    if figure.what == MEMORY:
        return known.memory_bandwidth_bytes_per_s
    if figure.ranks == 1:
        return known.host_link.bandwidth_bytes_per_s if known.host_link else None
    return (known.inter_host if figure.detail == NETWORK else known.intra_host).bandwidth_bytes_per_s


def _shown(value: float, unit: str) -> str:
    return format_number(value / _SCALES[unit])


def _share(value: float, known: float) -> str:
    return f"{value / known:.0%}"
