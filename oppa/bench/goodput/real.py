"""The runs of the real experiment: a small GPT on real text, on four hosts that this machine plays, under each policy and with each seed.

Every run is a command that anyone can type. What is there already is not run again, so that whoever is interrupted goes on.
"""

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from oppa import catalog
from oppa.bench.goodput.tracks import Track
from oppa.bench.goodput.variants import Variant, variants
from oppa.errors import EnvironmentLackingError
from oppa.problem.configuration import Configuration
from oppa.report.record import provenance, written
from oppa.table import Table
from oppa.training import ledger
from oppa.trials import logs
from oppa.trials.guard import Guard
from oppa.trials.wire import write_json

JOB = Path("examples", "goodput.toml")
HOSTS = ("--hosts", "4", "--cpus-per-rank", "0.45", "--racks", "2", "--bandwidth", "800mbit", "--uplink", "460mbit", "--latency", "1ms")
BATCHES = (8, 12, 16, 24, 32, 48, 64, 96)
"""Global batches of the table, in sequences; all that adapts begins with the first."""
STATIC = (16, 32, 64)
"""Batches of static runs, each in its fastest layout. One of 8 came to a loss of 1.9 after 68 seconds in a pilot, one of 16 after 59."""
GRACE_S, LOOK_S = 10.0, 0.1

Tell = Callable[[str], None]


def profiled(folder: Path, work: Path, tell: Tell) -> Table:
    """The table of the job on these hosts, measured now unless it is there."""
    place = folder / "table"
    if not place.exists():
        tell("the table: every layout, batch and micro-batch")
        batches = ",".join(map(str, BATCHES))
        words = ["profile", str(JOB), "--global-batch", batches, "--exhaustive", "--table", _from_root(work / "table")]
        _note(folder, "table", _oppa(words, work / "profile.log"))
        Table.read(work / "table").write(place)  # without the study that it comes from
    return Table.read(place)


def run(folder: Path, work: Path, seeds: Sequence[int], tell: Tell) -> None:
    """Do all runs that are not in `folder` yet, seed by seed; ledgers are made in `work`.

    Raises:
        EnvironmentLackingError: if a run fails.
    """
    if not (catalog.root() / JOB).is_file():
        raise EnvironmentLackingError(f"`{catalog.root() / JOB}` is not there", hint="run it from a checkout")
    with written(folder / "runs"), written(work):
        table = profiled(folder, work, tell)
        for seed, variant in _order(variants(table, BATCHES[0], BATCHES[-1], static=STATIC), seeds):
            name = f"{variant.name}-{seed}"
            if (folder / "runs" / f"{name}.csv.gz").exists():
                continue
            tell(f"{name}: {variant.begins.id}, batch {variant.begins.global_batch}")
            shutil.rmtree(work / name, ignore_errors=True)
            words = ["train", str(JOB), _setting(variant.begins, table), "--seed", str(seed), "--run", _from_root(work / name)]
            command = _oppa([*words, "--table", _from_root(folder / "table"), "--policy", variant.policy], work / f"{name}.log")
            Track.of(variant.name, seed, ledger.standing(ledger.read(work / name))).write(folder / "runs")
            _note(folder, name, command)
            shutil.rmtree(work / name, ignore_errors=True)


def _order(all_of_them: Sequence[Variant], seeds: Sequence[int]) -> Iterator[tuple[int, Variant]]:
    """Seed by seed, beginning with another variant each time: whatever drifts meets all alike."""
    for seed in seeds:
        first = seed % len(all_of_them)
        for variant in [*all_of_them[first:], *all_of_them[:first]]:
            yield seed, variant


def _setting(configuration: Configuration, table: Table) -> str:
    """As one types it: what the table has more than one value of."""
    values = [row.configuration.to_dict() for row in table.rows]
    return ",".join(f"{name}={value}" for name, value in configuration.to_dict().items() if len({each[name] for each in values}) > 1)


def _from_root(path: Path) -> str:
    """As the commands have it, which run in the checkout."""
    return os.path.relpath(path, catalog.root())


def _oppa(words: Sequence[str], log: Path) -> str:
    """Run `oppa` on the hosts that this machine plays, in the checkout; the command, as one types it. It does not outlive us."""
    oppa, netlab = [sys.executable, "-m", "oppa"], ["netlab", *HOSTS, "--"]
    argv = ["env", "-C", str(catalog.root()), *oppa, *netlab, *oppa, *words]
    log.write_bytes(b"")
    guard = Guard("it", argv, environment={**os.environ, "OMP_NUM_THREADS": "1"}, grace_s=GRACE_S, log=log)
    try:
        while not (how := guard.ended()):
            time.sleep(LOOK_S)
    finally:
        guard.close()
    told = shlex.join(["oppa", *netlab, "oppa", *words])
    if how != "it exited with code 0":
        raise EnvironmentLackingError(f"`{told}` has not worked: {how}", hint=logs.last_words(log) or f"see {log}")
    return told


def _note(folder: Path, name: str, command: str) -> None:
    """Write down where a run comes from."""
    place = folder / "runs" / "origins.json"
    origins = json.loads(place.read_text()) if place.exists() else {}
    here = provenance()
    origins[name] = {**here, "command": command}
    write_json(place, origins)
