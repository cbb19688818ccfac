"""Store elastic jobs as folders of a spool on a shared file system.

    NAME/job.toml            the job file as submitted
    NAME/elastic.json        its sizes: configuration and speed-up on each number of hosts, and the SHA-256 of the source scale table;
                             and the launch line of the user's own trainer, with the folder that it starts in
    NAME/orders/             searched schedules for these sizes, if the table has any; a start copies them into the run
    NAME/wanted.json         the desired number of hosts, written before any action; failed starts, refusals and costs of starts
    NAME/started.json        the process that trains it or did so last, on how many hosts, and from which byte of the ledger on
    NAME/run/                the run (`oppa train`), with the requested number of hosts while it trains (`oppa.training.run.resize`)
    NAME/ending.json         the last output of `oppa train`
    NAME/cancelled           created by `oppa cluster cancel`: the job must not be trained
    decisions.jsonl          the controller's decisions and their reasons
    arrivals.json            recent arrivals of other jobs

Files are written atomically. The process that trains a job holds a lock on `NAME/.supervised`, so that no other one does. The kernel
releases the lock when that process ends.

A job's folder is its owner's alone. Its launch line runs with the rights of the user who trains it, and its output may hold secrets.
"""

import dataclasses
import errno
import fcntl
import operator
import os
import re
import shutil
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from oppa.cluster.elastic_jobs.desired_state import DesiredState, finite
from oppa.cluster.job import ScaleTable
from oppa.errors import InputError, RunError, TableError, nearest
from oppa.pipeline import stored_schedules
from oppa.private_files import require_own
from oppa.problem.configuration import Configuration
from oppa.problem.job import has_command, load_job
from oppa.problem.launch_line.one_host import require_all_hosts
from oppa.regular_file import read_json
from oppa.table import Table
from oppa.table.files import META
from oppa.table.origin import SCALE_TABLE
from oppa.training.run.resize import PresentSize, ResizeRequest
from oppa.training.run.run_folder import STOP
from oppa.trials.trial_folder import write_json

JOB, ELASTIC, WANTED, STARTED, RUN = "job.toml", "elastic.json", "wanted.json", "started.json", "run"
ENDING, CANCELLED, HELD, LOG = "ending.json", "cancelled", ".supervised", "supervisor.log"
DECISIONS, ARRIVALS = "decisions.jsonl", "arrivals.json"
NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}"
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""Errors by which a damaged file of a spool shows."""
_MOMENTARY = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN}
"""Errors of a file system that is away for a moment, which are no evidence about a file."""


@dataclasses.dataclass(frozen=True, slots=True)
class JobStart:
    """Records the last start of a job."""

    hosts: int
    at: float
    """Unix time, by the clock of the host that began it."""
    size: int
    """Size of the ledger before the start, in bytes."""
    launch: int
    """Number of the launch that led to this start."""
    excused: bool = False
    """True if the start never counts as failed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ElasticJob:
    """Describes one job of a spool."""

    folder: Path
    hosts: int
    """Requested number of hosts."""
    sizes: Mapping[int, Configuration]
    """Configuration by number of hosts."""
    table: ScaleTable
    """Scale table; its sizes are numbers of hosts."""
    source: Path
    """Folder of the source scale table."""
    digest: str
    """SHA-256 of the source scale table's rows at submission."""
    command: tuple[str, ...] = ()
    """Launch line of the user's own trainer; empty if the job file has it, or the built-in trainer trains the job."""
    is_own: bool = False
    """True if the user's own trainer trains the job."""
    directory: Path = Path("/")
    """Folder in which the launch line starts."""

    @property
    def name(self) -> str:
        """Return the name of the job, which is that of its folder."""
        return self.folder.name

    @property
    def token(self) -> str:
        """Return an identifier that is unique among the jobs of all spools."""
        return f"{self.name}@{zlib.crc32(str(self.folder.resolve()).encode()):08x}"

    @property
    def run(self) -> Path:
        """Return the folder of the run."""
        return self.folder / RUN

    def to_dict(self) -> dict[str, Any]:
        """Return the job as a JSON object."""
        return {
            "hosts": self.hosts,
            "sizes": {str(hosts): configuration.to_dict() for hosts, configuration in self.sizes.items()},
            "speedups": {str(size.gpus): size.speedup for size in self.table.sizes},
            "source": str(self.source),
            "sha256": self.digest,
            "command": list(self.command),
            "own_trainer": self.is_own,
            "directory": str(self.directory),
        }

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a job from its folder; raises RunError if it is damaged, InputError if it is that of another user."""
        require_own(folder, folder.lstat())
        try:
            values = read_json(folder / ELASTIC)
            hosts, source, digest = operator.index(values["hosts"]), Path(values["source"]), str(values["sha256"])
            sizes = {int(size): Configuration.checked(each) for size, each in values["sizes"].items()}
            table = ScaleTable.of(hosts, [(int(size), speedup) for size, speedup in values["speedups"].items()])
            if {size.gpus for size in table.sizes} != sizes.keys():
                raise ValueError("`sizes` and `speedups` differ")
            return cls(
                folder=folder,
                hosts=hosts,
                sizes=sizes,
                table=table,
                source=source,
                digest=digest,
                command=tuple(map(str, values.get("command", ()))),
                is_own=bool(values.get("own_trainer")),
                directory=Path(values.get("directory", "/")),
            )
        except (*_UNREADABLE, InputError) as error:
            raise RunError(f"`{folder / ELASTIC}` is damaged: {error!r}", hint="submit the job again, under another name") from None

    def require_unchanged_table(self) -> None:
        """Refuse a source scale table that has changed since submission; raises TableError."""
        if (now := _digest(self.source)) != self.digest:
            raise TableError(
                f"the scale table `{self.source}` of `{self.name}` has changed: SHA-256 {now[:12] or 'none'}, not {self.digest[:12]}",
                hint="restore it, or submit the job again",
            )

    def desired(self) -> DesiredState:
        """Return the desired state; the requested number of hosts until another one was decided.

        Raises:
            OSError: the file system does not answer for a moment.
        """
        try:
            found = DesiredState.from_dict(read_json(self.folder / WANTED))
        except _UNREADABLE as error:
            if isinstance(error, OSError) and error.errno in _MOMENTARY:
                raise
            return DesiredState(self.hosts)
        return found if found.hosts in self.sizes else dataclasses.replace(found, hosts=self.hosts)

    def set_desired(self, **changes: Any) -> None:
        """Change fields of the desired state."""
        write_json(self.folder / WANTED, dataclasses.asdict(dataclasses.replace(self.desired(), **changes)))

    def start(self) -> JobStart | None:
        """Return the last start, or the last change of hosts of its process; None if there was none, or its file is damaged."""
        try:
            values = read_json(self.folder / STARTED)
            start = JobStart(
                int(values["hosts"]), finite(values["at"]), int(values["size"]), int(values["launch"]), bool(values.get("excused"))
            )
        except _UNREADABLE:
            return None
        if (present := self.present_size()) is not None:
            start = dataclasses.replace(start, hosts=present.hosts, at=present.at, size=present.size)
        return start if 0 <= start.size < 1 << 62 else None

    def present_size(self) -> PresentSize | None:
        """Return what the process that trains the job states about its hosts; None if it never changed them, nor refused to."""
        try:
            process = read_json(self.folder / STARTED)["process"]
        except _UNREADABLE:
            return None
        present = PresentSize.read(self.run)
        return present if present is not None and present.process == process and present.hosts in self.sizes else None

    def begun(self) -> JobStart | None:
        """Return the start of the last launch; None if that launch has not begun, or ended before it did."""
        last = self.start()
        return last if last is not None and last.launch == self.desired().launches else None

    def excuse(self) -> None:
        """Exempt the last start from the count of failed ones."""
        if self.start() is not None:
            write_json(self.folder / STARTED, {**read_json(self.folder / STARTED), "excused": True})

    def supervised(self) -> bool:
        """Return True if a process trains the job."""
        try:
            descriptor = os.open(self.folder / HELD, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO would block
        except FileNotFoundError:  # it was never trained
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that several readers can test it
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def ending(self) -> str:
        """Return the result of the last start: `finished`, `failed`, `stopped` or `revoked`; empty if unknown."""
        try:
            return str(read_json(self.folder / ENDING)["ending"])
        except _UNREADABLE:
            return ""

    def cancelled(self) -> bool:
        """Return True if the job must not be trained."""
        return (self.folder / CANCELLED).exists()

    def cancel(self) -> None:
        """Cancel the job. The process that trains it saves a checkpoint and stops.

        Raises:
            RunError: the job has been trained on all of its samples.
        """
        self._require_unfinished()
        (self.folder / CANCELLED).touch()
        self.ask_to_stop()

    def requested_size(self) -> ResizeRequest | None:
        """Return the last request for another number of hosts while the job is trained; None if there is none."""
        return ResizeRequest.read(self.run) if self.is_own else None

    def ask_for(self, hosts: int) -> None:
        """Request that the job is trained on another number of hosts; a process that cannot change them saves a checkpoint and stops."""
        if not self.is_own:
            self.ask_to_stop()
        elif self.run.is_dir():
            ResizeRequest(hosts=hosts, configuration=self.sizes[hosts]).write(self.run)

    def ask_to_stop(self) -> None:
        """Request the process that trains the job to save a checkpoint and stop."""
        if self.run.is_dir():
            (self.run / STOP).touch()

    def retry(self) -> None:
        """Train the job again from its last checkpoint, even if it was cancelled, has failed, or was given up.

        Raises:
            RunError: the job is being trained, or has been trained on all of its samples.
        """
        if self.supervised():
            raise RunError(f"`{self.name}` is being trained", hint="check its progress with `oppa cluster status`")
        self._require_unfinished()
        for name in (ENDING, CANCELLED):
            (self.folder / name).unlink(missing_ok=True)
        self.set_desired(hosts=self.hosts, failed_starts={}, refusals={}, learned=self.desired().launches)

    def _require_unfinished(self) -> None:
        """Raise RunError if nothing is left to train."""
        if not self.supervised() and self.ending() == "finished":
            raise RunError(f"`{self.name}` has been trained on all of its samples", hint="submit another job")


def submit(spool: Path, job: Path, table: Path, *, hosts: int | None = None, name: str = "", command: Sequence[str] = ()) -> ElasticJob:
    """Add a job to a spool.

    Args:
        table: Scale table of `oppa scale-table`, at the job's global batch.
        hosts: Requested hosts; the fewest in the table unless given.
        command: Launch line of the user's own trainer, which starts in the present folder; it replaces that of the file's `[command]`.

    Raises:
        InputError: the name is invalid or taken, the table has no size of whole hosts, the job names files relative to its folder, or its
            launch line is for one host alone.
        TableError: the table does not exist, was altered, or belongs to another model or another program.
    """
    known = Table.read(table, hint=SCALE_TABLE)
    known.origin.require_launch_line(is_given=bool(command) or has_command(job))
    problem = load_job(job, argv=command)
    each = problem.cluster.devices_per_host
    known.origin.require_program_of(problem)
    rows = tuple(
        row for row in known.rows if row.configuration.global_batch == problem.global_batch and not row.configuration.devices % each
    )
    best = {row.configuration.devices // each: row for row in sorted(rows, key=lambda row: row.steps_per_s)}
    if not best:
        batches = ", ".join(map(str, sorted({row.configuration.global_batch for row in known.rows})))
        message = f"`{table}` has no sizes of whole hosts of {each} devices at a batch of {problem.global_batch}; its batch is {batches}"
        raise InputError(message, hint=f"run `oppa scale-table RUN --devices {each}..{8 * each}` with a run at the job's batch")
    if problem.command is not None:
        require_all_hosts(problem.command.argv, max(best))
    asked = hosts or min(best)
    if asked not in best:
        raise InputError(f"`--hosts {asked}` is not in the scale table", hint=f"use one of {', '.join(map(str, sorted(best)))}")
    name = name or problem.name
    if not re.fullmatch(NAME, name):
        raise InputError(f"`{name}` is not a valid job name", hint="give --name, of up to 61 letters, digits, `-`, `_` and `.`")
    speedups = [(size, row.steps_per_s / best[asked].steps_per_s) for size, row in best.items()]
    found = ElasticJob(
        folder=spool / name,
        hosts=asked,
        sizes={size: row.configuration for size, row in sorted(best.items())},
        table=ScaleTable.of(asked, speedups),
        source=table.absolute(),
        digest=_digest(table),
        command=tuple(command),
        is_own=problem.command is not None,
        directory=Path.cwd(),
    )
    _write(found, job)
    return found


def _write(found: ElasticJob, job: Path) -> None:
    """Create the folder of a job atomically, with all of its files."""
    draft = found.folder.parent / f".{found.name}.{os.getpid()}"
    try:
        draft.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft.mkdir(mode=0o700)
        shutil.copy(job, draft / JOB)
        _require_complete(draft / JOB, job, found.command)
        stored_schedules.copy(found.source, draft)
        write_json(draft / ELASTIC, found.to_dict())
        draft.rename(found.folder)
    except InputError:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        taken = found.folder.exists()
        message = f"a job named `{found.name}` exists" if taken else f"`{found.folder}` cannot be written: {error.strerror}"
        raise InputError(message, hint="choose another `--name`" if taken else "choose a writable folder") from None


def _require_complete(copy: Path, job: Path, command: Sequence[str]) -> None:
    """Raise InputError if a copy of a job file in another folder is no job, because it names files relative to its own folder."""
    try:
        load_job(copy, argv=command)
    except InputError as error:
        message = f"`{job}` names a file relative to its folder, which the spool does not have: {error.message}"
        raise InputError(message, hint="write absolute paths into the job file") from None


def folders(spool: Path) -> list[Path]:
    """Return the folders of all jobs of a spool, sorted by name; raises InputError if the spool does not exist."""
    if not spool.is_dir():
        raise InputError(f"`{spool}` is not a spool", hint="create one with `oppa cluster submit SPOOL JOB --table FOLDER`")
    return sorted(path for path in spool.iterdir() if not path.name.startswith(".") and _holds_job(path))


def _holds_job(folder: Path) -> bool:
    try:
        return (folder / ELASTIC).is_file()
    except PermissionError:  # the folder of another user, which `ElasticJob.read` refuses by name
        return True


def job_of(spool: Path, name: str) -> ElasticJob:
    """Read one job of a spool; raises InputError if it does not exist, RunError if it is damaged."""
    names = [folder.name for folder in folders(spool)]
    if name not in names:
        raise InputError(f"`{spool}` has no job named `{name}`", hint=nearest(name, names) if names else "submit one: the spool is empty")
    return ElasticJob.read(spool / name)


def _digest(table: Path) -> str:
    """Return the SHA-256 of the table's rows as recorded in the table's metadata; empty if unreadable."""
    try:
        return str(read_json(table / META)["table"]["csv_sha256"])
    except _UNREADABLE:
        return ""
