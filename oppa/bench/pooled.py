"""Compare designers suite by suite, and over all suites together: who leads where, with intervals over tasks and seeds.

Only tasks that both designers have are compared. The pool leaves out suites that vary the tasks of others.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from oppa.bench.adversarial import adversarial_section, misled
from oppa.bench.intervals import Estimate, Table, estimate, mean, mean_difference, median_ratio, table_of
from oppa.bench.runs import Log, SearchRun
from oppa.bench.scores import OURS, best_at, grouped, longest_s, seconds_to, to_json
from oppa.bench.search_page import LOG, in_order
from oppa.bench.sections import fit_section, user_section
from oppa.bench.suites import SUITES
from oppa.bench.variations import PLAIN
from oppa.report.inputs import Inputs
from oppa.report.record import Section, write_record

POOL = "pool"
AFTER = (5, 10, 20)
"""Numbers of trials after which the incumbents are compared."""


@dataclasses.dataclass(frozen=True, slots=True)
class SuiteRuns:
    """Holds the runs of one suite."""

    suite: str
    runs: tuple[SearchRun, ...]
    """Runs under every variation, of the tasks that count together."""
    apart: tuple[SearchRun, ...] = ()
    """Runs of tasks that are reported separately."""

    @property
    def plain(self) -> list[SearchRun]:
        """Return the runs under the protocol itself."""
        return [run for run in self.runs if run.variation == PLAIN]

    @classmethod
    def of(cls, suite: str, runs: Iterable[SearchRun], apart: Collection[str]) -> Self:
        """Return the runs of a suite; tasks in `apart` are reported separately, unless there are no others."""
        runs = list(runs)
        separate = apart if any(run.task not in apart for run in runs) else ()
        split = (tuple(run for run in runs if (run.task in separate) == wanted) for wanted in (False, True))
        return cls(suite, *split)

    @classmethod
    def logged(cls, folder: Path) -> Self:
        """Return all runs in a suite's log; raises InputError if it is not a log."""
        log = Log.load(folder / LOG)
        return cls.of(folder.name, in_order(sorted(log.read(), key=lambda run: run.key)), log.protocol["apart"])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """Compares `oppa` with the opponent that it leads least, after a number of trials."""

    suite: str
    tasks: int
    after: int
    ours: float
    """Mean share of the best."""
    opponent: str
    theirs: float
    lead: Estimate

    @property
    def winner(self) -> str:
        """Return the name of the better designer; empty if the interval holds zero, or there is none."""
        return {1: "oppa", -1: self.opponent}.get(self.lead.sign, "")


def pool(suites: Sequence[SuiteRuns]) -> SuiteRuns:
    """Return the runs of all suites, with tasks named by suite; those under variations are left out."""
    plain = [(each.suite, run) for each in suites if not SUITES[each.suite].is_misled for run in each.plain]
    return SuiteRuns(suite=POOL, runs=tuple(dataclasses.replace(run, task=f"{suite}/{run.task}") for suite, run in plain))


def leads(suites: Sequence[SuiteRuns], trials: int) -> Iterator[Lead]:
    """Yield the lead of `oppa` on each suite and in the pool; nothing where it has no opponent."""
    for each in (*suites, pool(suites)):
        groups = grouped(each.plain)
        peers = [name for name in groups if name not in OURS and _shared(groups, name)]
        for after in (after for after in AFTER if after <= trials and peers):
            tables = {name: _tables(groups, name, _best_after(after, trials)) for name in peers}
            opponent = min(peers, key=lambda name: float(mean_difference(*tables[name])))
            ours, theirs = tables[opponent]
            yield Lead(
                suite=each.suite,
                tasks=len(ours),
                after=after,
                ours=float(mean(ours)),
                opponent=opponent,
                theirs=float(mean(theirs)),
                lead=estimate(mean_difference, ours, theirs),
            )


def second_ratios(suites: Sequence[SuiteRuns], trials: int) -> dict[str, dict[str, Estimate]]:
    """Return the seconds to 95% of `oppa` over those of each other designer, by designer and suite."""
    found: dict[str, dict[str, Estimate]] = {}
    for each in (*suites, pool(suites)):
        groups = grouped(each.plain)
        for name in (name for name in groups if name != "oppa" and _shared(groups, name)):
            longest = longest_s((*groups["oppa"], *groups[name]), trials)
            tables = _tables(groups, name, functools.partial(seconds_to, trials=trials, longest=longest))
            found.setdefault(name, {})[each.suite] = estimate(median_ratio, *tables)
    return found


def pooled_sections(suites: Sequence[SuiteRuns], trials: int, skipped: Mapping[str, str]) -> list[Section]:
    """Return the tables over all suites."""
    together = pool(suites)
    gains, hard = user_section(together.runs), [run for each in suites if SUITES[each.suite].is_misled for run in each.runs]
    made = [
        _lead_section(list(leads(suites, trials))),
        _seconds_section(second_ratios(suites, trials), [each.suite for each in suites]),
        dataclasses.replace(gains, title="What a user gains, all suites together") if gains else None,
        fit_section([run for run in together.runs if run.designer == "oppa"]),
        adversarial_section(hard, trials),
        _skipped_section(skipped),
    ]
    return [section for section in made if section is not None and section.rows]


def pooled_json(suites: Sequence[SuiteRuns], trials: int, skipped: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return every suite's comparison, the pool's, and the leads with their intervals."""
    compared = {each.suite: to_json(each.plain, each.apart, trials, {}) for each in suites}
    return {
        "suites": compared,
        "pooled": to_json(pool(suites).plain, [], trials, {}),
        "leads": [{**dataclasses.asdict(lead), "winner": lead.winner} for lead in leads(suites, trials)],
        "seconds_ratio": {
            name: {suite: dataclasses.asdict(ratio) for suite, ratio in ratios.items()}
            for name, ratios in second_ratios(suites, trials).items()
        },
        "adversarial": [
            dataclasses.asdict(each) for suite in suites if SUITES[suite.suite].is_misled for each in misled(suite.runs, trials)
        ],
        "skipped": dict(skipped),
        "environment": dict(environment),
    }


def write_pooled(folder: Path, trials: int, skipped: Mapping[str, str], inputs: Inputs) -> Path:
    """Write the record of the pool from the logs of all suites, and return its page."""
    suites = [SuiteRuns.logged(folder / name) for name in SUITES if name not in skipped]
    return write_record(folder, "How soon is the fastest found? Every suite", pooled_sections(suites, trials, skipped), inputs=inputs)


def _lead_section(found: Sequence[Lead]) -> Section:
    rows = [
        (
            each.suite,
            each.tasks,
            each.after,
            f"{each.ours:.3f}",
            each.opponent,
            f"{each.theirs:.3f}",
            each.lead.format(3, sign=True),
            each.winner or "-",
        )
        for each in found
    ]
    text = (
        "Mean true throughput of the incumbent over the best there is, after some trials. The incumbent has the best measured "
        "throughput, so noise can lower its true value. The opponent is the one that `oppa` leads least on the tasks that both have. The "
        "interval of the lead holds 90% over tasks and seeds; there is a winner if it does not hold zero. The choice of the opponent is "
        "not part of it."
    )
    columns = ("suite", ">tasks", ">trials", ">oppa", "opponent", ">opponent's", ">lead", "winner")
    return Section(title="Who leads where", text=text, columns=columns, rows=rows)


def _seconds_section(ratios: Mapping[str, Mapping[str, Estimate]], suites: Sequence[str]) -> Section:
    names = [name for name in (*suites, POOL) if any(name in of for of in ratios.values())]
    rows = [(designer, *(of[name].format(2) if name in of else "" for name in names)) for designer, of in ratios.items()]
    text = (
        "Seconds of `oppa` until the incumbent is within 5% of the best, over those of the designer: geometric mean over tasks of the "
        "ratio of medians, with an interval that holds 90% over tasks and seeds. A search that never gets there counts as long as the "
        "longest one of either on its task."
    )
    return Section(title="Seconds to 95%", text=text, columns=("designer", *(f">{name}" for name in names)), rows=rows)


def _skipped_section(skipped: Mapping[str, str]) -> Section | None:
    rows = list(skipped.items())
    return Section(title="SKIPPED", text="Suites that could not run here.", columns=("suite", "why"), rows=rows) if rows else None


def _shared(groups: Mapping[str, Sequence[SearchRun]], name: str) -> list[str]:
    """Return the tasks on which both `oppa` and another designer have runs, sorted."""
    return sorted({run.task for run in groups.get("oppa", ())} & {run.task for run in groups[name]})


def _tables(groups: Mapping[str, Sequence[SearchRun]], name: str, figure: Callable[[SearchRun], float]) -> tuple[Table, Table]:
    """Return a figure of `oppa` and of another designer on the tasks that both have."""
    tasks = _shared(groups, name)
    return table_of(groups["oppa"], tasks, figure), table_of(groups[name], tasks, figure)


def _best_after(after: int, trials: int) -> Callable[[SearchRun], float]:
    return lambda run: best_at(run, trials)[after - 1]
