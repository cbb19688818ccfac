"""Adopt a framework's files in a job: fill in what the job leaves open, and compare what both state."""

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from oppa import catalog
from oppa.errors import InputError, JobError
from oppa.plain_text import one_line
from oppa.problem.baseline import alike
from oppa.problem.configuration import Value
from oppa.problem.declaration import parse, read, spell, validate
from oppa.problem.detect import suggest_job
from oppa.problem.job import load_job, read_job
from oppa.problem.job_file import ModelTable
from oppa.problem.job_text import with_table, with_value
from oppa.problem.model import DESCRIBED_ONLY, Model, key_of
from oppa.problem.problem import Problem
from oppa.trials.runner import MANIFEST, RunnerManifest
from oppa.tuning.formats import stated
from oppa.tuning.formats.format import Reading, is_legal
from oppa.tuning.formats.job_facts import ANY, CommandOf, JobFacts, fits

Take = Literal["file", "job"]
DEGREES = ("dp", "tp", "pp", "ep")
"""The parameters of the layout; all others are knobs."""
OPTIONAL = {*DESCRIBED_ONLY, "sliding_window"} - {"dense_layers"}
"""Dimensions that a job leaves out rather than state them as 0."""
Edit = tuple[str, str, Value]
"""A table of a job file, a key, and the value to write."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Holds the text of a job while it is fitted to a framework's files."""

    path: Path
    """The job file; without a job, one that is not written yet."""
    text: str
    added: str = ""
    """The tables that were appended to the job's own text."""
    command: str = ""
    """The part of these tables that is a launch line made from the files."""
    rewritten: bool = False
    """True if lines of the job's own text were changed, or all of it is new."""
    notes: tuple[str, ...] = ()

    def problem(self) -> Problem:
        """Return the problem that the text describes; raises JobError if it is wrong."""
        return load_job(self.path, text=self.text)

    def edited(self, *edits: Edit, note: str) -> "Draft":
        """Return the draft with values set; a missing table is appended."""
        text = self.text
        for table, key, value in edits:
            text = with_value(text, table, key, value)
        kept = text.startswith(self.text.rstrip()) and not self.rewritten
        added = text[len(self.text.rstrip()) :].strip("\n") if kept else ""
        both = "\n\n".join(filter(None, (self.added, added)))
        return dataclasses.replace(self, text=text, added=both, rewritten=not kept, notes=(*self.notes, note))

    def with_tables(self, tables: str, *, note: str) -> "Draft":
        """Return the draft with further tables appended."""
        both = "\n\n".join(filter(None, (self.added, tables.strip())))
        text = f"{self.text.rstrip()}\n\n{tables.strip()}\n"
        return dataclasses.replace(self, text=text, added=both, notes=(*self.notes, note))

    def with_command(self, tables: str, *, note: str) -> "Draft":
        """Return the draft with a launch line appended."""
        return dataclasses.replace(self.with_tables(tables, note=note), command=tables.strip())

    def with_degrees(self, degrees: Mapping[str, int]) -> "Draft":
        """Return the draft with degrees as parameters of its search space, unless its text has a table that must be edited by hand."""
        if not degrees:
            return self
        tables = "[space.parameters]\n" + "".join(f"{name} = {size}\n" for name, size in degrees.items())
        try:
            tomllib.loads(f"{self.text}\n{tables}")
        except tomllib.TOMLDecodeError:
            return self
        return self.with_tables(tables, note="[space.parameters] is taken from the file")

    def with_launch_line_of_job(self, facts: JobFacts) -> "Draft":
        """Return the draft with its launch line rewritten for the job's present layers, model and precision."""
        if not self.command or facts.command is None:
            return self
        problem = self.problem()
        command = facts.command(model=problem.model, precision=problem.training.precision).strip()
        text, added = (each.replace(self.command, command) for each in (self.text, self.added))
        return dataclasses.replace(self, text=text, added=added, command=command)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Describes a value that the files and the job state differently."""

    words: str
    file: str
    job: str
    edits: tuple[Edit, ...] = ()
    """Edits that make the job state what the files do."""

    def __str__(self) -> str:
        return self.words.format(file=self.file, job=self.job)


def completed(path: Path, facts: JobFacts, *, origin: str) -> Draft:
    """Return a job in which the files fill what it leaves open: model, batch, runner and search space.

    Raises:
        JobError: the file cannot be read, or is not TOML.
    """
    text = read_job(path)
    declared = parse(text, source=path.name, error=JobError)
    draft = Draft(path=path, text=text)
    if not facts.lacking and "model" not in declared:
        edits = tuple(("model", key, value) for key, value in facts.model_table.items())
        draft = draft.edited(*edits, note="[model] is taken from the file")
    if facts.global_batch and "global_batch" not in stated.table(declared, "batch"):
        draft = draft.edited(
            ("batch", "global_batch", facts.global_batch), note=f"global_batch = {facts.global_batch} is taken from the file"
        )
    if "command" in declared:
        return _with_space(draft, declared, facts, origin=origin)
    if "name" in stated.table(declared, "runner") or not facts.runner:
        return draft
    return _with_runner(draft, facts, origin=origin)


def new_job(path: Path, facts: JobFacts, *, origin: str, source: str) -> Draft:
    """Return a new job for the facts in files; this machine provides what they do not state.

    Raises:
        InputError: for a format that names no runner, or files that state only a part of the model.
    """
    if not facts.runner:
        raise InputError(f"a file of {origin} does not determine a runner", hint="name the job that it configures: `--job job.toml`")
    if facts.model and facts.lacking:
        message = f"the file does not state {', '.join(f'`{name}`' for name in facts.lacking)} as a number"
        raise InputError(message, hint="add them to the file, or name a job that has them: `--job job.toml`")
    suggested = tomllib.loads(suggest_job(devices=facts.devices // (facts.hosts or 1) if facts.devices else None))
    cluster: dict[str, Any] = suggested["cluster"]
    if facts.devices:
        cluster |= {"hosts": facts.hosts or 1, "devices_per_host": facts.devices // (facts.hosts or 1)}
    notes = [] if facts.model else ["the file states no model: [model] is a suggestion"]
    devices = f"only {facts.devices} devices" if facts.devices else "nothing"
    notes.append(f"the file states {devices} of [cluster]: the rest describes this machine")
    notes += [] if facts.global_batch else ["the file states no global batch: [batch] is a suggestion"]
    tables: dict[str, dict[str, Value]] = {
        "model": facts.model_table if facts.model else suggested["model"],
        "batch": {"global_batch": facts.global_batch or suggested["batch"]["global_batch"]},
        "cluster": cluster,
        "training": {"precision": facts.precision or ("fp32" if facts.model else suggested["training"]["precision"])},
        "limits": suggested["limits"],
    }
    text = f"# Generated by `oppa import` from {one_line(source)} ({origin}).\n" + "".join(f"# {note}\n" for note in notes)
    for name, values in tables.items():
        text = with_table(text, name, values)
    draft = Draft(path=path, text=text, rewritten=True, notes=tuple(notes))
    return _with_runner(draft, facts, origin=origin)


def _with_space(draft: Draft, declared: Mapping[str, Any], facts: JobFacts, *, origin: str) -> Draft:
    """Choose the framework's search space for a job that has a launch line of its own and names no space."""
    if not facts.launch_space or "name" in stated.table(declared, "space"):
        return draft
    chosen = draft.edited(("space", "name", facts.launch_space), note=f"chosen for {origin}: the search space `{facts.launch_space}`")
    try:
        chosen.problem()
    except InputError as error:
        note = f"the search space stays `{ANY}`, because the job does not fit `{facts.launch_space}`: {error.message}"
        return dataclasses.replace(draft, notes=(*draft.notes, note))
    return chosen


def _with_runner(draft: Draft, facts: JobFacts, *, origin: str) -> Draft:
    """Choose the framework's runner and search space for a job that chooses none."""
    declared = parse(draft.text, source=draft.path.name, error=JobError)
    words = f"the runner `{facts.runner}`" + (f" and the search space `{facts.space}`" if facts.space else "")
    note = f"chosen for {origin}: {words}"
    if facts.command:
        model = validate(ModelTable, stated.table(declared, "model"), error=JobError).record(draft.path.parent)
        draft = draft.with_command(_as_stated(facts, facts.command, model), note=f"{note}; check `[command]`")
    else:
        draft = draft.edited(("runner", "name", facts.runner), note=note)
    if facts.space and "name" not in stated.table(declared, "space"):
        draft = draft.edited(("space", "name", facts.space), note="")
    draft = draft.with_degrees(facts.degrees) if facts.command else draft
    return dataclasses.replace(draft, notes=tuple(filter(None, draft.notes)))


def _as_stated(facts: JobFacts, command: CommandOf, model: Model) -> str:
    """Return the tables of the launch line as the files state it; the job's model provides what they leave open."""
    dimensions: dict[str, Any] = {**facts.model, **facts.kind}
    return command(model=dataclasses.replace(model, **dimensions), precision=facts.precision)


def settled(draft: Draft, facts: JobFacts, reading: Reading, *, origin: str, take: Take | None) -> Draft:
    """Return the draft with its differences from the files settled by `take`, and with a launch line that states the job's values.

    Raises:
        InputError: there are differences and `take` is None, or one of them cannot be taken from the files. It has both values of each.
    """
    problem = draft.problem()
    found = tuple(differences(problem, facts, reading, origin=origin))
    if found and take is None:
        hint = "use `--take file` for the file's values or `--take job` for the job's, or correct one of the two"
        raise InputError("\n".join(map(str, found)), hint=hint)
    if take == "job":
        kept = tuple(f"kept the job's value: {each}" for each in found)
        kept += ("the launch line uses the job's values",) if found and draft.command else ()
        return _checked(dataclasses.replace(draft, notes=(*draft.notes, *kept)).with_launch_line_of_job(facts), facts)
    for each in found:
        if not each.edits:
            raise InputError(str(each), hint="correct the job: this value cannot be taken from the file")
        draft = draft.edited(*each.edits, note=f"took the file's value: {each}")
        if each.edits[0][0] == "runner" and facts.command and not problem.command:
            draft = draft.with_command(_as_stated(facts, facts.command, problem.model), note="check `[command]`").with_degrees(
                facts.degrees
            )
    return _checked(draft.with_launch_line_of_job(facts), facts)


def _checked(draft: Draft, facts: JobFacts) -> Draft:
    """Return the draft; raises InputError for a degree of the files that its job does not have, as fewer replicas fit then."""
    space = draft.problem().space
    for name, size in facts.degrees.items():
        if not is_legal(space, name, size):
            raise InputError(
                f"the file has {name} = {size}, which is no parameter of the job", hint=f"add `{name} = {size}` below `[space.parameters]`"
            )
    return draft


def differences(problem: Problem, facts: JobFacts, reading: Reading, *, origin: str) -> Iterator[Difference]:
    """Yield what the files and the job state differently: search space, model, batch, devices and precision."""
    if not fits(origin, problem.space.name, tuple(catalog.names("search_spaces"))):
        yield _foreign(problem, facts, origin)
    for name, value in {**facts.model, **facts.kind}.items():
        if (ours := getattr(problem.model, name)) != value:
            key = key_of(name)
            edits: tuple[Edit, ...] = (("model", key, value),) if value or name not in OPTIONAL else ()
            yield Difference(words=f"the file has {key} = {{file}}, the job {{job}}", file=spell(value), job=spell(ours), edits=edits)
    batch = int(reading.settings.get("global_batch", problem.global_batch))
    if batch != problem.global_batch:
        words, taken = "the file has global_batch = {file}, the job {job}", ("batch", "global_batch", batch)
        yield Difference(words=words, file=str(batch), job=str(problem.global_batch), edits=(taken,))
    yield from _devices(problem, facts)
    if facts.precision and facts.precision != problem.training.precision:
        edit = ("training", "precision", facts.precision)
        words = "the file has precision = {file}, the job {job}"
        yield Difference(words=words, file=spell(facts.precision), job=spell(problem.training.precision), edits=(edit,))


def unnamed_knobs(problem: Problem, reading: Reading) -> dict[str, Value]:
    """Return the knobs that the job's own launch line does not state, and whose value in its trials differs from the files'.

    The line states what it names, and what the words, keys or variables of the search space add to it.
    """
    if problem.command is None:
        return {}
    space = problem.space
    named = {*problem.command.parameters, *DEGREES, *(known.name for known in space.parameters if known.words or known.keys or known.env)}
    knobs = {name: value for name, value in reading.settings.items() if name in space.names and name not in named}
    return {name: value for name, value in knobs.items() if not alike(name, value, space[name].default)}


def _devices(problem: Problem, facts: JobFacts) -> Iterator[Difference]:
    cluster = problem.cluster
    hosts = facts.hosts or cluster.hosts
    if not facts.devices or (facts.devices, hosts) == (cluster.devices, cluster.hosts):
        return
    ours, theirs = (f"{number} devices on {on} hosts" for number, on in ((cluster.devices, cluster.hosts), (facts.devices, hosts)))
    edits: tuple[Edit, ...] = (("cluster", "hosts", hosts), ("cluster", "devices_per_host", facts.devices // hosts))
    yield Difference(words="the file has {file}, the job {job}", file=theirs, job=ours, edits=edits if facts.devices % hosts == 0 else ())


def _foreign(problem: Problem, facts: JobFacts, origin: str) -> Difference:
    """Return the difference that the job searches another framework's space, where the file's parameters mean nothing or something else."""
    edits: tuple[Edit, ...] = ()
    if facts.runner:
        space = facts.space or _space_of(facts.runner)
        edits = (("runner", "name", facts.runner), *((("space", "name", space),) if space else ()))
    words = "the file is for {file}, but the job runs {job}"
    return Difference(words=words, file=origin, job=f"`{problem.runner.name}` and searches `{problem.space.name}`", edits=edits)


def _space_of(runner: str) -> str:
    """Return the search space of a runner of the catalog; empty if the runner has none of its own."""
    return read(RunnerManifest, catalog.find("runners", runner) / MANIFEST, error=InputError).search_space
