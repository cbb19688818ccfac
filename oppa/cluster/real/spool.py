"""Elastic jobs as folders of a spool, seen by all hosts: what each is, how many hosts it shall have, and how it ended.

    NAME/job.toml            as it was submitted
    NAME/elastic.json        its sizes: the configuration on each number of hosts, and how fast it is; whose table that was, by SHA-256
    NAME/orders/             searched orders for these sizes, where the table had some; a start takes them into the run
    NAME/wanted.json         how many hosts it shall have, written before anything is done about it; starts that were in vain
    NAME/started.json        who trains it now, or did last: a process, on how many hosts, from which byte of the ledger on
    NAME/run/                the run (`oppa train`)
    NAME/ending.json         what `oppa train` said last
    NAME/cancelled           made by `oppa cluster cancel`: it shall not be trained
    decisions.jsonl          what the controller has decided, and why
    arrivals.json            jobs of others that have come lately

A file is written whole or not at all. Whoever trains a job holds `NAME/.supervised`, so that nobody else does; the kernel lets go of it.
"""

import dataclasses
import fcntl
import json
import os
import re
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from oppa.cluster.job import ScaleTable
from oppa.errors import InputError, RunError, TableError, nearest
from oppa.pipeline import stored_orders
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.table import Table
from oppa.table.files import META
from oppa.training.run_folder import STOP
from oppa.trials.wire import write_json

JOB, ELASTIC, WANTED, STARTED, RUN = "job.toml", "elastic.json", "wanted.json", "started.json", "run"
ENDING, CANCELLED, HELD, LOG = "ending.json", "cancelled", ".supervised", "supervisor.log"
DECISIONS, ARRIVALS = "decisions.jsonl", "arrivals.json"
NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}"
FRUITLESS = 3
"""Starts in a row, on so many hosts, that may come to no step."""


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """What a job shall have, and what was learned of what it cannot have."""

    hosts: int
    """From its next start on."""
    vain: Mapping[int, int] = dataclasses.field(default_factory=dict)
    """Starts in a row that have come to no step, by the hosts that they were on."""
    start_s: float | None = None
    """What a start has cost at least."""
    launches: int = 0
    """So often was somebody told to train it."""
    launched_at: float = 0.0
    """When somebody was last."""

    def hopeless(self, hosts: int) -> bool:
        """Whether it was tried often enough."""
        return self.vain.get(hosts, 0) >= FRUITLESS


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """Somebody trains a job, or did."""

    hosts: int
    at: float
    """By the clock of who began it."""
    size: int
    """Of the ledger before, in bytes."""
    launch: int
    """Of all launches, whose start it is."""
    excused: bool = False
    """It does not count, whatever comes of it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """One job of a spool."""

    folder: Path
    hosts: int
    """That it asks for."""
    sizes: Mapping[int, Configuration]
    """By hosts."""
    table: ScaleTable
    """In hosts."""
    source: Path
    """The table's folder."""
    digest: str
    """Of what it said."""

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.folder.name

    @property
    def token(self) -> str:
        """What it is called among the jobs of all spools."""
        return f"{self.name}@{zlib.crc32(str(self.folder.absolute()).encode()):08x}"

    @property
    def run(self) -> Path:
        """The folder of its run."""
        return self.folder / RUN

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "hosts": self.hosts,
            "sizes": {str(hosts): configuration.to_dict() for hosts, configuration in self.sizes.items()},
            "speedups": {str(size.gpus): size.speedup for size in self.table.sizes},
            "source": str(self.source),
            "sha256": self.digest,
        }

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Of a spool; raises RunError where it is damaged."""
        try:
            values = json.loads((folder / ELASTIC).read_text())
            sizes = {int(hosts): Configuration.from_dict(each) for hosts, each in values["sizes"].items()}
            table = ScaleTable.of(values["hosts"], [(int(hosts), speedup) for hosts, speedup in values["speedups"].items()])
            source, digest = Path(values["source"]), values["sha256"]
            return cls(folder=folder, hosts=values["hosts"], sizes=sizes, table=table, source=source, digest=digest)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, InputError) as error:
            raise RunError(f"`{folder / ELASTIC}` is damaged: {error!r}", hint="submit the job again, under another name") from None

    def require_unchanged_table(self) -> None:
        """Refuse a scale table that is not what it was; raises TableError."""
        if (now := _digest(self.source)) != self.digest:
            raise TableError(
                f"the scale table `{self.source}` of `{self.name}` is another now: SHA-256 {now[:12] or 'none'}, not {self.digest[:12]}",
                hint="put it back, or submit the job again",
            )

    def wanted(self) -> Wanted:
        """How many hosts it shall have; as many as it asks for, until something else was decided."""
        try:
            values = json.loads((self.folder / WANTED).read_text())
            vain = {int(hosts): int(starts) for hosts, starts in values["vain"].items()}
            start_s = float(values["start_s"]) if values["start_s"] is not None else None
            found = Wanted(int(values["hosts"]), vain, start_s, int(values["launches"]), float(values["launched_at"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return Wanted(self.hosts)
        return found if found.hosts in self.sizes else dataclasses.replace(found, hosts=self.hosts)

    def want(self, **changes: Any) -> None:
        """Decide other fields of `Wanted`."""
        write_json(self.folder / WANTED, dataclasses.asdict(dataclasses.replace(self.wanted(), **changes)))

    def start(self) -> Start | None:
        """Its last; None: it has not been started, or is in this moment."""
        try:
            values = json.loads((self.folder / STARTED).read_text())
            return Start(int(values["hosts"]), float(values["at"]), int(values["size"]), int(values["launch"]), bool(values.get("excused")))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def begun(self) -> Start | None:
        """The start that its last launch has come to; None: that has not begun yet, or has ended before."""
        last = self.start()
        return last if last is not None and last.launch == self.wanted().launches else None

    def excuse(self) -> None:
        """Its last start was not in vain for its own fault."""
        write_json(self.folder / STARTED, {**json.loads((self.folder / STARTED).read_text()), "excused": True})

    def supervised(self) -> bool:
        """Whether somebody trains it; those may ask who can only read."""
        try:
            descriptor = os.open(self.folder / HELD, os.O_RDONLY)
        except FileNotFoundError:  # nobody ever has
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # others may look, too
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def ending(self) -> str:
        """What its last start came to: `finished`, `failed`, `stopped` or `revoked`; empty: nobody knows."""
        try:
            return str(json.loads((self.folder / ENDING).read_text())["ending"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def cancelled(self) -> bool:
        """Whether it shall not be trained."""
        return (self.folder / CANCELLED).exists()

    def cancel(self) -> None:
        """It shall not be trained any more; whoever trains it saves it and stops."""
        (self.folder / CANCELLED).touch()
        self.ask_to_stop()

    def ask_to_stop(self) -> None:
        """Whoever trains it saves it and stops."""
        if self.run.is_dir():
            (self.run / STOP).touch()

    def retry(self) -> None:
        """Train it again, from where it was, though it was cancelled, has failed, or was given up.

        Raises:
            RunError: it is trained, or has all that it was to be trained on.
        """
        if self.supervised():
            raise RunError(f"`{self.name}` is being trained", hint="`oppa cluster status` says how far it is")
        if self.ending() == "finished":
            raise RunError(f"`{self.name}` has been trained on all of its samples", hint="submit another job")
        for name in (ENDING, CANCELLED):
            (self.folder / name).unlink(missing_ok=True)
        self.want(hosts=self.hosts, vain={})


def submit(spool: Path, job: Path, table: Path, *, hosts: int | None = None, name: str = "") -> Elastic:
    """Put a job into a spool.

    Args:
        table: Of `oppa scale-table`, at the job's global batch.
        hosts: That it asks for; the fewest of the table unless given.

    Raises:
        InputError: a name that is none or is taken, a table without a size that fits the job's hosts.
        TableError: no such table, or it was altered, or is of another model.
    """
    problem = load_job(job)
    each, known = problem.cluster.devices_per_host, Table.read(table)
    known.origin.require_model_of(problem)
    rows = tuple(
        row for row in known.rows if row.configuration.global_batch == problem.global_batch and not row.configuration.devices % each
    )
    best = {row.configuration.devices // each: row for row in sorted(rows, key=lambda row: row.steps_per_s)}
    if not best:
        hint = f"`oppa scale-table RUN --devices {each}..{8 * each}` of a run at this batch"
        raise InputError(f"`{table}` has no sizes of whole hosts of {each} devices at a batch of {problem.global_batch}", hint=hint)
    asked = hosts or min(best)
    if asked not in best:
        raise InputError(f"`--hosts {asked}` is not in the scale table", hint=f"it has {', '.join(map(str, sorted(best)))}")
    name = name or problem.name
    if not re.fullmatch(NAME, name):
        raise InputError(f"`--name {name}` is no name", hint="letters, digits, `-`, `_` and `.`")
    speedups = [(size, row.steps_per_s / best[asked].steps_per_s) for size, row in best.items()]
    found = Elastic(
        folder=spool / name,
        hosts=asked,
        sizes={size: row.configuration for size, row in sorted(best.items())},
        table=ScaleTable.of(asked, speedups),
        source=table.absolute(),
        digest=_digest(table),
    )
    _write(found, job)
    return found


def _write(found: Elastic, job: Path) -> None:
    """The folder appears with all that belongs into it."""
    draft = found.folder.parent / f".{found.name}.{os.getpid()}"
    try:
        draft.mkdir(parents=True)
        shutil.copy(job, draft / JOB)
        stored_orders.copy(found.source, draft)
        write_json(draft / ELASTIC, found.to_dict())
        draft.rename(found.folder)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        taken = found.folder.exists()
        message = f"there is a job called `{found.name}`" if taken else f"`{found.folder}` cannot be written: {error.strerror}"
        raise InputError(message, hint="give another --name" if taken else "name a folder that is yours") from None


def folders(spool: Path) -> list[Path]:
    """Of all jobs of a spool, by name; raises InputError where it is none."""
    if not spool.is_dir():
        raise InputError(f"`{spool}` is no spool", hint="`oppa cluster submit SPOOL JOB --table FOLDER` makes one")
    return sorted(path for path in spool.iterdir() if (path / ELASTIC).is_file() and not path.name.startswith("."))


def job_of(spool: Path, name: str) -> Elastic:
    """One of a spool; raises InputError where it is not there, RunError where it is damaged."""
    names = [folder.name for folder in folders(spool)]
    if name not in names:
        raise InputError(f"`{spool}` has no job called `{name}`", hint=nearest(name, names) if names else "it has none")
    return Elastic.read(spool / name)


def _digest(table: Path) -> str:
    """What the table's facts say of its rows."""
    try:
        return str(json.loads((table / META).read_text())["table"]["csv_sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
