"""Render a study as one self-contained HTML page: it needs no network, no other file and no framework.

The template escapes everything from outside (names, causes, tracebacks, paths); it does not escape our own figures, style and script.
The page's Content-Security-Policy forbids every request, and every script but its own.
"""

import base64
import dataclasses
import hashlib
import json
import math
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from oppa import catalog
from oppa.cost.memory_limits import memory_limits
from oppa.problem.candidates import Candidates
from oppa.problem.configuration import Configuration
from oppa.problem.describe import job
from oppa.problem.problem import Problem
from oppa.regular_file import read, read_json
from oppa.report import charts, words
from oppa.report.money import pays_sentences
from oppa.report.record import Section
from oppa.report.sensitivity import Sensitivity, sensitivities
from oppa.report.study import on_slow_nodes, slow_nodes_of
from oppa.report.surrogate import sections
from oppa.report.text_file import write_text
from oppa.report.verifications import section as section_of_verifications
from oppa.study import Study, Trial
from oppa.study.records import BASELINE, SEARCH, VERIFICATION
from oppa.trials.runner import load_runner
from oppa.tuning.comparison import WinnerComparison, compare_contenders
from oppa.tuning.designers.oppa import fitted
from oppa.tuning.equivalence import equivalence
from oppa.tuning.result import break_even
from oppa.tuning.spending import Spending, cost, gpu_hours, spending, unit
from oppa.tuning.surrogate_summary import surrogate_summaries
from oppa.tuning.verify.past import past
from oppa.units import format_bytes, format_hours, format_money, format_number, format_seconds, with_noun

TEMPLATES = Path(__file__).parent / "templates"
MOST_FITTED = 150
"""Largest number of trials that the surrogate is fitted to, evenly spaced among all.

The fit takes seconds, and its time grows with the cube of this number.
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SurrogateReport:
    """Summarises the surrogate after the study's trials, or after some of them."""

    trials: int
    sensitivities: Sequence[Sensitivity]
    sections: Sequence[Section]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Describes the content of `best/`: the command that starts the job, the script's text, and the id of its configuration."""

    command: str
    text: str
    configuration_id: str


def write_page(study: Study, problem: Problem, path: Path) -> Path:
    """Write the study's page atomically; returns `path`. Raises InputError if it cannot be written."""
    return write_text(path, render(study, problem))


def render(study: Study, problem: Problem) -> str:
    """Return the page; the same study gives the same text."""
    running = study.running()  # read before the trials, so that a trial that ends in between is in both, not missing from both
    trials, candidates = study.trials(), problem.candidates()
    ended = {trial.id for trial in trials}
    searched = [trial for trial in trials if trial.purpose not in (BASELINE, VERIFICATION)]
    result = compare_contenders(trials, candidates, problem.limits.repeats, problem.baseline)
    spent = spending(study, problem)
    simulated, slow_nodes = load_runner(problem.runner).in_process, slow_nodes_of(problem)
    facts = {
        **head(),
        "problem": problem,
        "job": job(problem),
        "candidates": len(candidates),
        "study": study,
        "trials": trials,
        "searched": len(searched),
        "again": _again(trials),
        "slow": {trial.id: on_slow_nodes(trial, slow_nodes) for trial in trials},
        "simulated": simulated,
        "spent_s": sum(trial.seconds for trial in searched) if simulated else study.spent_s(),
        "spent": spent,
        "spent_rows": spent_rows(spent),
        "pays": pays_sentences(break_even(result, spent, problem)) if result else [],
        "unit": unit(problem.cluster),
        "running": [lease for lease in running if lease.trial not in ended],
        "result": result,
        "verdicts": words.verdicts(result, trials, problem.objective, equivalence(study, result, problem)) if result else [],
        "differences": differences(result, problem) if result else [],
        "launch": _launch(study),
        "progress": charts.best_so_far(trials, unit=problem.objective.rate_unit, simulated=simulated),
        "throughput": charts.throughput(trials, unit=problem.objective.rate_unit),
        "memory": charts.memory(trials, memory_limits(problem).reported),
        "surrogate": _surrogate(problem, candidates, trials),
        "verified": section_of_verifications(found) if (found := past(study.folder)) else None,
        "early": words.early_termination(trials, q_max=problem.limits.q_max),
    }
    return environment().get_template("page.html.j2").render(facts)


def head() -> dict[str, str]:
    """Return what all pages share: the style sheet, the script, and the script's digest for the Content-Security-Policy."""
    script, style = catalog.charts_script() + catalog.web("tables.js"), catalog.charts_style() + catalog.web("page.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {"style": Markup(style), "script": Markup(script), "script_hash": digest}


def differences(result: WinnerComparison, problem: Problem) -> list[tuple[str, object, object]]:
    """Return every parameter in which the winner differs from the reference: its name, the winner's value, the reference's.

    If no reference was measured, the framework's defaults of the single parameters replace it.
    """
    best, reference = result.best.configuration, result.reference.configuration if result.reference else None
    values = [(known.name, best[known.name], reference[known.name] if reference else known.default) for known in problem.space.parameters]
    return [(name, ours, theirs) for name, ours, theirs in values if ours != theirs]


def spent_rows(spent: Spending) -> list[tuple[str, str, str, str]]:
    """Return a row for each use of the devices, and one for all: its name, its hours, its price, and its share."""

    def row(name: str, seconds: float) -> tuple[str, str, str, str]:
        hours = gpu_hours(spent.cluster, seconds)
        price = cost(spent.limits, hours)
        money = "" if price is None else format_money(price, spent.limits.currency)
        return name, format_number(hours) if hours < 99.95 else format_hours(hours), money, f"{seconds / spent.seconds:.0%}"

    return [row(name, seconds) for name, seconds in (*spent.parts.items(), ("all", spent.seconds))] if spent.seconds else []


def _again(trials: Sequence[Trial]) -> set[int]:
    """Return the ids of search trials that repeat an earlier trial's configuration."""
    first = {trial.configuration: trial.id for trial in reversed(trials) if trial.purpose == SEARCH and trial.counts}
    return {trial.id for trial in trials if trial.purpose == SEARCH and trial.counts and trial.id != first[trial.configuration]}


def _surrogate(problem: Problem, candidates: Candidates, trials: Sequence[Trial]) -> SurrogateReport | None:
    """Return what the designer `oppa` learns from the trials of any designer.

    Return None if the job has no prior, nothing was measured, or the fit fails.
    """
    known = [trial for trial in trials if trial.counts and trial.purpose != VERIFICATION]
    known = known[:: math.ceil(len(known) / MOST_FITTED) or 1]
    if not problem.has_prior or not any(trial.steps_per_s for trial in known):
        return None
    try:
        designer = fitted(problem, candidates, known)
    except ArithmeticError:  # no covariance fits the trials, but the page still shows them
        return None
    return SurrogateReport(
        trials=len(known), sensitivities=sensitivities(designer, candidates), sections=sections(surrogate_summaries(designer, candidates))
    )


MOST_BYTES = 1 << 20
"""Longest file of `best/` that is shown; a trial could replace it."""


def _launch(study: Study) -> Script | None:
    """Return the script that the last session exported; None if there is none.

    Its winner may differ from that of the present trials.
    """
    best = study.folder / "best"
    try:
        text = read(best / "run.sh", limit_bytes=MOST_BYTES).decode(errors="replace")
        configuration = Configuration.checked(read_json(best / "configuration.json", limit_bytes=MOST_BYTES))
    except (OSError, ValueError, TypeError):
        return None
    return Script(command=shlex.quote(str(best / "run.sh")), text=text, configuration_id=configuration.id)


def environment() -> Environment:
    """Return the environment of the templates, with the filters and functions that they may call."""
    made = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {
        "number": lambda value: format_number(value) if value is not None else "",
        "bytes": lambda value: format_bytes(value) if value is not None else "",
        "seconds": format_seconds,
        "counted": with_noun,
        "spelled": lambda value: str(value).replace("_", " "),
        "svg": Markup,
        "json": partial(json.dumps, separators=(",", ":"), allow_nan=False),
    }
    made.globals |= {"speed": words.speed, "measured": words.measured, "interval": words.interval, "sensitivity": words.sensitivity}
    return made
