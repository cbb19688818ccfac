"""Write the page of a comparison: tables and figures like those of the OPPA paper, all derived from the raw log in the same folder."""

from collections.abc import Sequence
from pathlib import Path

from oppa.bench import search_figures
from oppa.bench.adversarial import adversarial_section
from oppa.bench.runs import Log, SearchRun
from oppa.bench.scores import OURS, grouped, longest_s, seconds_to
from oppa.bench.sections import (
    ablation_section,
    break_even_section,
    clock_section,
    comparison_sections,
    confusion_section,
    coverage_section,
    fit_section,
    length_scale_section,
    task_section,
    thinking_section,
    user_section,
    winner_section,
)
from oppa.bench.sensitivity import prior_section, q_min_figures, q_min_section, variation_section
from oppa.bench.variations import PLAIN
from oppa.report.figures import standalone
from oppa.report.record import Section, markdown, write_recorded

LOG, PAGE = "runs.jsonl", "README.md"


def write_page(folder: Path) -> Path:
    """Write the page and its figures to the folder of the log; raises InputError if there is no log."""
    text, figures = page(folder / LOG)
    return write_recorded(folder, PAGE, text, figures=figures, inputs=None)


def page(path: Path) -> tuple[str, dict[str, str]]:
    """Return the page in Markdown, and its figures as SVG by file name; the same log gives the same bytes."""
    log = Log.load(path)
    trials, apart = int(log.protocol["trials"]), set(log.protocol["apart"])
    runs = sorted(log.read(), key=lambda run: run.key)
    plain = in_order([run for run in runs if run.variation == PLAIN])
    counted, others = [run for run in plain if run.task not in apart], [run for run in plain if run.task in apart]
    shown = counted or others
    judged = [run for run in runs if run.task not in apart or not counted]
    figures = {**search_figures.all_figures(shown, trials), **q_min_figures(_varied(judged))}
    parts = [
        f"# How soon is the fastest found? Suite `{log.protocol['suite']}`\n",
        *("\n".join(f"- {name}: {value}" for name, value in origin.items()) + "\n" for origin in log.origins()),
        *([f"- digest: {log.inputs.line}\n"] if log.inputs else []),
        f"- raw log: `{path.name}`, SHA-256 `{log.sha256}`, {len(runs)} plays\n",
        *map(_section, comparison_sections(counted, others, trials)),
        *(f"![{caption}]({name})\n\n{caption}.\n" for name, (caption, _) in figures.items()),
        *map(_section, _details(plain, shown, judged, trials)),
    ]
    return "\n".join(parts), {name: standalone(svg) for name, (_, svg) in figures.items()}


def _details(plain: Sequence[SearchRun], shown: Sequence[SearchRun], judged: Sequence[SearchRun], trials: int) -> list[Section]:
    varied = _varied(judged)
    made = [
        task_section(plain, trials),
        clock_section(plain),
        break_even_section(shown),
        user_section(shown),
        ablation_section(shown, trials),
        coverage_section(shown),
        confusion_section(shown),
        fit_section(shown),
        variation_section(varied, trials),
        prior_section(varied),
        adversarial_section(judged, trials),
        q_min_section(varied),
        winner_section(plain),
        length_scale_section(plain),
        thinking_section(plain),
    ]
    return [section for section in made if section is not None]


def _varied(runs: Sequence[SearchRun]) -> list[SearchRun]:
    """Return the runs of `oppa`, under every variation."""
    return [run for run in runs if run.designer == "oppa"]


def in_order(runs: Sequence[SearchRun]) -> list[SearchRun]:
    """Sort runs: `oppa` first, then the peers from fast to slow, then the other variants of `oppa`."""
    groups, longest = grouped(runs), longest_s(runs, 10**6)
    usual = {name: sorted(seconds_to(run, 10**6, longest) for run in group)[len(group) // 2] for name, group in groups.items()}
    names = sorted(groups, key=lambda name: (name != "oppa", name in OURS, usual[name]))
    return [run for name in names for run in groups[name]]


def _section(section: Section) -> str:
    return f"## {section.title}\n\n{section.text}\n\n{markdown(section.columns, section.rows)}"
