"""Elastic jobs as folders of a spool, seen by all hosts: what each is, how many hosts it shall have, and how it ended.

    NAME/job.toml            as it was submitted
    NAME/elastic.json        its sizes: the configuration on each number of hosts, and how fast it is; whose table that was, by SHA-256
    NAME/wanted.json         how many hosts it shall have, written before anything is done about it; starts that have come to nothing
    NAME/started.json        who trains it now: a process, and on how many hosts
    NAME/run/                the run (`oppa train`)
    NAME/ending.json         what `oppa train` said last
    decisions.jsonl          what the controller has decided, and why

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
from oppa.errors import InputError, RunError, TableError
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.table import Table
from oppa.table.files import META
from oppa.trials.wire import write_json

JOB, ELASTIC, WANTED, STARTED, RUN, ENDING, HELD, LOG = (
    *("job.toml", "elastic.json", "wanted.json", "started.json", "run", "ending.json", ".supervised", "supervisor.log"),
)
DECISIONS = "decisions.jsonl"
NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}"


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
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"`{folder / ELASTIC}` is damaged: {error!r}", hint="submit the job again, under another name") from None

    def require_unchanged_table(self) -> None:
        """Refuse a scale table that is not what it was; raises TableError."""
        if (now := _digest(self.source)) != self.digest:
            raise TableError(
                f"the scale table `{self.source}` of `{self.name}` is another now: SHA-256 {now[:12] or 'none'}, not {self.digest[:12]}",
                hint="put it back, or submit the job again",
            )

    def wanted(self) -> int:
        """How many hosts it shall have."""
        try:
            hosts = int(json.loads((self.folder / WANTED).read_text())["hosts"])
        except (OSError, ValueError, KeyError, TypeError):
            return self.hosts
        return hosts if hosts in self.sizes else self.hosts

    def want(self, hosts: int) -> None:
        """From its next start on."""
        write_json(self.folder / WANTED, {"hosts": hosts, "fruitless": self.fruitless()})

    def fruitless(self) -> int:
        """Starts in a row that have come to no step."""
        try:
            return int(json.loads((self.folder / WANTED).read_text())["fruitless"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def count(self, fruitless: int) -> None:
        """So many, from now on."""
        write_json(self.folder / WANTED, {"hosts": self.wanted(), "fruitless": fruitless})

    def last_start(self) -> float | None:
        """When somebody began to train it; None: nobody has."""
        try:
            return float(json.loads((self.folder / STARTED).read_text())["at"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def started(self) -> Mapping[str, Any] | None:
        """Who trains it: a `process`, on so many `hosts`, since the time `at`; None: nobody does."""
        if not self.supervised():
            return None
        try:
            values: dict[str, Any] = json.loads((self.folder / STARTED).read_text())
        except (OSError, ValueError):
            return {}  # in this moment
        return values

    def supervised(self) -> bool:
        """Whether somebody trains it."""
        descriptor = os.open(self.folder / HELD, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # others may look, too
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def ending(self) -> str:
        """How training ended for good: `finished` or `failed`; empty: it has not."""
        try:
            ending = str(json.loads((self.folder / ENDING).read_text())["ending"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        return ending if ending in ("finished", "failed") else ""


def submit(spool: Path, job: Path, table: Path, *, hosts: int | None = None, name: str = "") -> Elastic:
    """Put a job into a spool.

    Args:
        table: Of `oppa scale-table`, at the job's global batch.
        hosts: That it asks for; the fewest of the table unless given.

    Raises:
        InputError: a name that is none or is taken, a table without a size that fits the job's hosts.
        TableError: no such table, or it was altered.
    """
    problem = load_job(job)
    each, rows = problem.cluster.devices_per_host, Table.read(table).rows
    rows = tuple(row for row in rows if row.configuration.global_batch == problem.global_batch and not row.configuration.devices % each)
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
        write_json(draft / ELASTIC, found.to_dict())
        draft.rename(found.folder)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        taken = found.folder.exists()
        message = f"there is a job called `{found.name}`" if taken else f"`{found.folder}` cannot be written: {error.strerror}"
        raise InputError(message, hint="give another --name" if taken else "name a folder that is yours") from None


def jobs(spool: Path) -> list[Elastic]:
    """All of a spool, by name; raises InputError where it is none."""
    if not spool.is_dir():
        raise InputError(f"`{spool}` is no spool", hint="`oppa cluster submit SPOOL JOB --table FOLDER` makes one")
    folders = sorted(path for path in spool.iterdir() if (path / ELASTIC).is_file() and not path.name.startswith("."))
    return [Elastic.read(folder) for folder in folders]


def _digest(table: Path) -> str:
    """What the table's facts say of its rows."""
    try:
        return str(json.loads((table / META).read_text())["table"]["csv_sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
