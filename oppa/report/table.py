"""Summarise a table: its origin, the fastest strategy at each batch size, and the loss with another one there."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from oppa.report.record import Section
from oppa.table import Table, TableRow
from oppa.table.frontier import Curves, StrategyRanking, featured, standings, switches
from oppa.units import format_bytes, format_seconds, format_uncertain

ROW_COLUMNS = (">batch", "configuration", ">samples/s", ">memory", "known", "trials")
DAY_S = 86400.0


def facts(table: Table, *, now: float | None = None) -> list[tuple[str, str]]:
    """Return facts by name: how, when and where the table was made, and how much of it was measured.

    Args:
        now: Seconds since 1970, to which the table's age is given; None in a text that is stored.
    """
    origin = table.origin
    counts = Counter(row.source for row in table.rows)
    known = [f"{counts[source]} {source}" for source in ("measured", "predicted") if counts[source]]
    left_out = f" of {origin.candidates} candidates; {origin.pruned} do not fit" if origin.pruned else ""
    found = [
        ("made", _date(origin.created_at) + (f", {_age(now - origin.created_at)} ago" if now is not None else "")),
        ("profile", _method(table)),
        ("trials", f"{origin.trials}, which took {format_seconds(origin.spent_s)}"),
        ("rows", (", ".join(known) or "none") + (left_out or f" of {origin.candidates} candidates")),
        ("hardware", origin.hardware.words if origin.hardware else "simulated"),
    ]
    return found + ([("training", f"{origin.training_steps} training steps refined it")] if origin.training_steps else [])


def provenance(table: Table) -> dict[str, str]:
    """Return the facts for a record, with the command, the software and the study."""
    origin = table.origin
    versions = ", ".join(f"{name} {version}" for name, version in origin.versions.items())
    return {"command": f"`{origin.command}`", **dict(facts(table)), "software": versions, "study": origin.study}


MEANING = (
    "± is one standard deviation, `mbs` is the micro-batch, and `next` is the second strategy. The last two columns are losses of "
    "throughput at this batch size: with the second strategy, and with the strategy that is best at the smallest batch."
)


def sections(known: Curves) -> list[Section]:
    """Return the sections of a table's record."""
    standing = standings(known)
    return [
        Section(
            title="Fastest strategy at each batch size",
            text=f"{changes(standing)} {MEANING}",
            columns=best_columns(standing),
            rows=best_rows(standing),
        ),
        Section(
            title="Fastest micro-batch of each strategy",
            text="The fastest strategy of each batch size comes first.",
            columns=ROW_COLUMNS,
            rows=[row_cells(row) for each in standing for row in _at(known, each.global_batch)],
        ),
    ]


def changes(standing: Sequence[StrategyRanking]) -> str:
    """Return a sentence on the batch sizes at which the fastest strategy changes."""
    if not standing:
        return "No configuration fits in memory, or none was measured."
    found = [
        f"`{after.fastest.strategy.id}` replaces `{before.fastest.strategy.id}` as the fastest at {after.global_batch}"
        for before, after in switches(standing)
    ]
    if not found:
        return f"`{standing[0].fastest.strategy.id}` is the fastest at every batch size."
    return f"{'; '.join(found)}."


def best_columns(standing: Sequence[StrategyRanking]) -> list[str]:
    """Return the headings of `best_rows`."""
    first = f">best at {standing[0].global_batch}" if standing else ">first"
    return [">batch", "best", ">mbs", ">samples/s", ">memory", "known", "next", ">slower", first]


def best_rows(standing: Sequence[StrategyRanking], letters: Mapping[str, str] | None = None) -> list[tuple[str, ...]]:
    """Return a row for each batch size; strategies appear by the letter that a chart gives them, else by id."""
    return [_best_cells(each, letters or {}) for each in standing]


def _best_cells(each: StrategyRanking, letters: Mapping[str, str]) -> tuple[str, ...]:
    def named(row: TableRow | None) -> str:
        return "-" if row is None else letters.get(row.strategy.id, row.strategy.id)

    row = each.fastest
    return (
        str(each.global_batch),
        named(row),
        str(row.configuration.micro_batch),
        samples(row),
        memory(row),
        row.source,
        named(each.next_best),
        share(each.loss(each.next_best)),
        share(each.loss(each.first)),
    )


def row_cells(row: TableRow) -> tuple[str, ...]:
    """Return a row of the table as the cells of ROW_COLUMNS."""
    trials = ", ".join(map(str, row.trials))
    return str(row.configuration.global_batch), row.configuration.id, samples(row), memory(row), row.source, trials


def samples(row: TableRow) -> str:
    """Return sequences per second with one standard deviation, as text."""
    return format_uncertain(row.samples_per_s, row.stddev * row.configuration.global_batch)


def memory(row: TableRow) -> str:
    """Return the peak memory of a rank as text; a dash if it is unknown."""
    return "-" if row.memory_bytes is None else format_bytes(row.memory_bytes)


def share(loss: float | None) -> str:
    """Return a share of the throughput as a percentage; a dash if it is unknown."""
    return "-" if loss is None else f"{loss:.1%}" if loss < 0.0995 else f"{loss:.0%}"


def to_json(table: Table, known: Curves) -> dict[str, Any]:
    """Return the whole table and its frontier as plain values for JSON."""
    standing = standings(known)
    return {
        "origin": table.origin.to_dict(),
        "batches": [_standing_json(each) for each in standing],
        "switches": [
            {"from": before.fastest.strategy.id, "to": after.fastest.strategy.id, "between": [before.global_batch, after.global_batch]}
            for before, after in switches(standing)
        ],
        "featured": [strategy.id for strategy in featured(standing)],
        "rows": [row_json(row) for row in table.rows],
    }


def _standing_json(each: StrategyRanking) -> dict[str, Any]:
    others = {"next_best": each.next_best, "first": each.first}
    compared = {name: row and {**row_json(row), "slower_by": each.loss(row)} for name, row in others.items()}
    return {"global_batch": each.global_batch, "fastest": row_json(each.fastest), **compared}


def row_json(row: TableRow) -> dict[str, Any]:
    """Return one row as plain values for JSON."""
    names = ("steps_per_s", "samples_per_s", "stddev", "log_stddev", "memory_bytes", "source")
    values = {name: getattr(row, name) for name in names}
    return {"strategy": row.strategy.id, "configuration": row.configuration.to_dict(), **values, "trials": list(row.trials)}


def _at(known: Curves, batch: int) -> list[TableRow]:
    return sorted((curve[batch] for curve in known.values() if batch in curve), key=lambda row: -row.samples_per_s)


def _method(table: Table) -> str:
    origin = table.origin
    percent = "" if origin.expected_loss is None else f"the expected loss of goodput is {origin.expected_loss:.2%}"
    bound = "" if origin.loss_bound is None else f"its bound is {origin.loss_bound:.2%}"
    ended = "" if origin.complete else "incomplete"
    return ", ".join(filter(None, (origin.method, percent, bound, ended)))


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _age(seconds: float) -> str:
    return format_seconds(max(0.0, seconds)) if seconds < DAY_S else f"{seconds / DAY_S:.0f} d"
