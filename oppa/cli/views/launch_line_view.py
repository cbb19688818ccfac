"""Print what oppa understood of a launch line, and the line with the words that a search changed."""

import os
import re
import shlex
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from oppa.cli.views import style
from oppa.problem.describe import varying
from oppa.problem.templates import spelled
from oppa.tuning.launch_line.meaning import ASSUMED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from oppa.problem.launch_line.words import Word
    from oppa.tuning.launch_line.changed_line import ChangedLine
    from oppa.tuning.launch_line.line_job import LineJob

_ENVIRONMENT = re.compile(r"(NCCL|FI|UCX|CUDA|GLOO|OMP|HSA|RCCL|NVTE|PYTORCH|TORCH|HF|MKL|KMP|GOMP|TRITON)_\w+")
_STEP_KEPT = re.compile(r"cpu-bind|gpu-bind|mem-bind|distribution|container-\w+|mpi|export|network|cpus-per-task")
_QUIET = frozenset(["tp", "pp", "cp", "schedule"])
_TITLE = 9
_MOST_VALUES = 8


def print_understood(job: "LineJob", console: "Console | None" = None) -> None:
    """Print what was understood, each value with its origin, what varies and what is kept; to stderr without `console`."""
    out = console or style.err()
    meaning, problem = job.meaning, job.problem
    head = [f"[bold]{'line':<{_TITLE}}[/] {escape(shlex.join(job.line.typed))}"]
    style.print_rows(out, [*head, f"{'':<{_TITLE}} [cyan]{escape(meaning.title)}[/][dim]{escape(_shown_by(job))}[/]", ""], _TITLE + 1)
    rows = _rows(job)
    names, values = (max(len(row[at]) for row in rows) for at in (0, 1))
    for name, value, origin in rows:
        shown = "yellow" if origin == ASSUMED else "dim"
        out.print(f"  {escape(name):<{names}}  {escape(value):<{values}}  [{shown}]{escape(origin)}[/]")
    out.print()
    remarks = [
        f"[bold]{'' if number else title:<{_TITLE}}[/] " + (f"[{colour}]{escape(line)}[/]" if colour else escape(line))
        for title, lines, colour in _remarks(job)
        for number, line in enumerate(lines)
    ]
    if problem.baseline is None and meaning.framework != "plain":
        remarks.append(f"[bold]{'first':<{_TITLE}}[/] the default: the present configuration is not a candidate")
    style.print_rows(out, [*remarks, ""], _TITLE + 1)


def _shown_by(job: "LineJob") -> str:
    """Return what shows the framework, as the end of a sentence; empty if the name is the mark itself."""
    meaning = job.meaning
    if meaning.framework == "plain":
        return f", {meaning.evidence}"
    return "" if meaning.evidence.startswith(meaning.title) else f", recognised by {meaning.evidence}"


def _rows(job: "LineJob") -> list[tuple[str, str, str]]:
    """Return the understood values with their origins."""
    meaning, problem = job.meaning, job.problem
    devices = meaning.devices
    hosts = f" on {devices.hosts} hosts" if devices.hosts > 1 else ""
    rows = [("devices", f"{devices.count} {problem.cluster.device}{hosts}", devices.origin or "this machine")]
    rows += [(fact.name, fact.value, fact.origin) for fact in meaning.facts]
    if problem.stated_model is not None:
        model = problem.stated_model
        text = f"{model.layers} layers, width {model.hidden}, {model.heads} heads, {model.seq_len} tokens"
        rows.append(("model", text, meaning.model_origin or "--model"))
    rows += [(f"model {name}", str(value), ASSUMED) for name, value in meaning.assumed.items()]
    if meaning.global_batch:
        rows.append(("batch", str(meaning.global_batch), meaning.batch_origin))
    if meaning.precision:
        rows.append(("precision", meaning.precision, meaning.origins.get("precision") or f"default of {meaning.title}"))
    rows += [(fact.name, fact.value, fact.origin) for fact in meaning.training]
    settled = (
        (name, str(value).lower() if isinstance(value, bool) else str(value))
        for name, value in meaning.settings.items()
        if value is not False
    )
    usual = {"dp": "devices / other degrees"}
    rows += [
        (name, value, meaning.origins.get(name) or usual.get(name, f"default of {meaning.title}"))
        for name, value in settled
        if not (name in _QUIET and value in ("1", "1f1b"))
    ]
    return rows


def _remarks(job: "LineJob") -> list[tuple[str, list[str], str]]:
    """Return titled lines: what varies, is kept, copied and mounted, what trials add, conflicts, notes and hints."""
    meaning = job.meaning
    added = " ".join(meaning.added).replace("{steps}", "STEPS")
    return [
        ("varies", varying_words(job), ""),
        ("kept", kept_words(job), ""),
        ("trials", [f"{file.path.name}: a copy with {', '.join(file.rewritten)}" for file in meaning.files], ""),
        ("mounted", list(job.mounted), "dim"),
        ("added", [f"{added}: trials report every step"] if added else [], "dim"),
        ("conflict", [f"{each.about}: {each.taken} counts, not {each.other}" for each in meaning.conflicts], "yellow"),
        ("note", list(job.notes), "dim"),
        ("hint", list(meaning.hints), "cyan"),
    ]


def varying_words(job: "LineJob") -> list[str]:
    """Return the parameters that vary with their values, several in a line."""
    found = []
    for name, taken in varying(job.problem.candidates()).items():
        values = [spelled(value) for value in taken]
        values = values if len(values) <= _MOST_VALUES else [*values[:3], "...", values[-1]]
        found.append(f"{name} {' '.join(values)}")
    return _wrapped(found)


def kept_words(job: "LineJob") -> list[str]:
    """Return what trials keep of the line: variables, binding, containers, wrappers."""
    line = job.line
    stated = [(name, word.text) for name, word in line.environment if not word.missing and name not in job.command.withheld]
    kept = [f"{name}={text}" for name, text in stated if _ENVIRONMENT.fullmatch(name)]
    kept += [f"{name} of the environment" for name in _inherited(line.environment)]
    for stage in line.stages:
        if stage.kind == "wrapper":
            kept.append(shlex.join(word.text for word in stage.words))
        elif stage.kind == "step":
            named = _STEP_KEPT.fullmatch if job.command.keeps_step else job.command.binding.get
            kept += [f"{stage.name} --{name}={value.text}" for name, value in stage.options if value is not None and named(name)]
    return _wrapped(kept)


def _inherited(stated: "Sequence[tuple[str, Word]]") -> list[str]:
    """Return the families of oppa's own variables that trials inherit, without those that the line sets."""
    families = sorted({name.partition("_")[0] for name in os.environ if re.match(r"(NCCL|FI|UCX|CUDA|RCCL)_", name)})
    return [f"{family}_*" for family in families if not any(name.startswith(f"{family}_") for name, _ in stated)]


def _wrapped(texts: list[str], width: int = 96) -> list[str]:
    """Return texts in lines, with points between those of a line."""
    lines: list[str] = []
    for text in texts:
        if lines and len(lines[-1]) + len(text) < width:
            lines[-1] += f" · {text}"
        else:
            lines.append(text)
    return lines


def print_changed(changed: "ChangedLine", files: "Sequence[Path]" = (), *, keep: "ChangedLine | None" = None) -> None:
    """Print the user's launch line to stderr with the changed words marked, the changes as `old -> new`, and files.

    Args:
        keep: The present line, if it is tied with the winner's and therefore recommended.
    """
    out = style.err()
    if keep is not None:
        _print_words("your line", keep, out)
        out.print("\n  keep it: no other configuration is measurably faster")
    _print_words("your line" if keep is None else "the winner's line", changed, out)
    if not changed.changes:
        out.print("\n  unchanged: the winner is the present configuration")
        return
    width = max(len(each.about) for each in changed.changes)
    out.print()
    for each in changed.changes:
        old, new = (escape(text or "-") for text in (each.old, each.new))
        out.print(f"  {escape(each.about):<{width}}  [dim]{old}[/] -> [bold]{new}[/]")
    for path in files:
        out.print(f"\n  written: {escape(str(path))}")


def _print_words(title: str, line: "ChangedLine", out: "Console") -> None:
    """Print a launch line with its changed words marked; only a terminal shows the removed ones."""
    marks = {"": "", "changed": "bold underline green", "added": "bold underline green", "removed": "strike red"}
    words = [
        f"[{marks[word.mark]}]{escape(shlex.quote(word.text))}[/]" if word.mark else escape(shlex.quote(word.text))
        for word in line.words
        if word.mark != "removed" or out.is_terminal
    ]
    out.print(f"\n[bold]{title}[/]\n", "  " + " ".join(words), sep="\n", soft_wrap=True)


def understood_json(job: "LineJob") -> dict[str, Any]:
    """Return JSON values of what was understood."""
    meaning = job.meaning
    return {
        "framework": meaning.framework,
        "evidence": meaning.evidence,
        "values": [{"name": name, "value": value, "origin": origin} for name, value, origin in _rows(job)],
        "varies": varying(job.problem.candidates()),
        "kept": kept_words(job),
        "mounted": list(job.mounted),
        "conflicts": [{"about": each.about, "taken": each.taken, "other": each.other} for each in meaning.conflicts],
        "notes": list(job.notes),
        "hints": list(meaning.hints),
        "job": job.text,
    }
