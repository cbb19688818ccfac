"""Declare the input files of benchmarks: job files with the files that define their tasks, priors, and measured data.

This module imports nothing heavy, because `oppa bench` compares every record with its inputs on each call.
"""

import dataclasses
import json
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from oppa import catalog
from oppa.errors import InputError
from oppa.report.inputs import ABSENT, Inputs

SIMULATED = ("bert", "llama-2-7b", "llama-3.2-1b", "moe", "qwen2-1.5b", "vit")
"""OPPA's six scenarios (Tables 2 and 3, App. I): the tasks of the suite `simulated`."""
DESIGNERS = (
    "oppa",
    "oppa-paper",
    "random",
    "xgboost",
    "cost-model",
    "vanilla-bo",
    "tpe",
    "optuna-gp",
    "grid",
    "planner",
    "prior-rank",
    "forest-physics",
    "xgboost-physics",
    "exhaustive",
    "oppa-no-prior",
    "oppa-no-early-stop",
)
"""Designers that are compared by default."""
CPU_JOB, CPU_TABLE = Path("examples", "cpu.toml"), Path("results", "cpu-exhaustive", "trials.csv")
"""Task of the suite `cpu`: a job whose configurations were all measured, and the table of these measurements."""
REPLAY = Path("search_spaces", "nanotron-h100.toml")
DATA = "OPPA_DATA/"
"""Prefix of the names of files outside the project."""
PROTOCOL = 2
"""Number of the protocol of `oppa.bench.run_designer`; raise it when runs under the new protocol are not comparable with earlier ones.

Protocol 1 has no time limit of a trial and no baseline. Logs that state no number are of protocol 1.
"""
COST_MODEL = ("priors/step_time.toml", "priors/memory.toml")
ALIASES = ("aliases", "shared_aliases")
"""Keys of a device's file that serve only to find it."""
TEXTS = ("description", "why", "what", "source")
"""Keys of texts for readers, in tables of any depth."""
OTHER = "other"
"""Prior of jobs whose search space states no framework."""
UNKNOWN = "GPU"
"""Hardware prior of devices that `priors/hardware` lacks."""


def simulated_job(name: str) -> Path:
    """Return the job file of a simulated task, relative to the catalog's root."""
    return Path("runners", "simulated", "jobs", f"{name}.toml")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Holds the inputs that a benchmark declares."""

    jobs: tuple[Path, ...] = ()
    """Job files of its tasks; each represents all files that define the task."""
    files: tuple[str, ...] = ()
    """Other files, relative to the catalog's root."""
    cost_model: bool = False
    """The benchmark uses the cost model, and with it the priors of the jobs' devices."""
    data: tuple[str, ...] = ()
    """Files in the folder of measured data."""
    parts: tuple[str, ...] = ()
    """Names of its tasks, if they have no job files."""

    def inputs(self, **arguments: Any) -> Inputs:
        """Return the current inputs together with these arguments; a missing file has the hash ABSENT."""
        here = catalog.root()
        paths = {path: None for job in self.jobs for path in task_files(job)}
        if self.cost_model:
            paths |= dict.fromkeys(map(Path, COST_MODEL))
            paths |= dict.fromkeys(path for job in self.jobs for path in (_prior(_device(_toml(job))), _framework(_space(job))))
        paths |= dict.fromkeys(map(Path, self.files))
        uses = [_toml(job) for job in self.jobs]
        asked = frozenset(name for use in uses for name in use.get("space", {}).get("parameters", {}))
        known = {path.as_posix(): content_hash(here / path, asked=asked, words=any("command" in use for use in uses)) for path in paths}
        measured = {f"{DATA}{name}": content_hash(catalog.data_folder() / name) for name in self.data}
        return Inputs(arguments=arguments, tasks=self.tasks, files={**known, **measured})

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the names of the tasks."""
        return (*(job.stem for job in self.jobs), *self.parts)

    @property
    def lacking(self) -> list[str]:
        """Return the names of the measured data files that are missing."""
        return [name for name in self.data if not (catalog.data_folder() / name).is_file()]

    def only(self, tasks: Collection[str]) -> "Declared":
        """Return the declaration restricted to some tasks; raises InputError for an unknown task."""
        for name in tasks:
            if name not in self.tasks:
                raise InputError(f"`{name}` is not a task of this benchmark", hint=f"use some of {', '.join(self.tasks)}")
        jobs, parts = tuple(job for job in self.jobs if job.stem in tasks), tuple(part for part in self.parts if part in tasks)
        return dataclasses.replace(self, jobs=jobs, parts=parts)


def joined(several: Iterable[Declared]) -> Declared:
    """Return the union of several declarations without tasks."""
    files: dict[str, None] = {}
    data: dict[str, None] = {}
    for each in several:
        assert not each.tasks, "their records would have to name them"
        files |= dict.fromkeys(each.files)
        data |= dict.fromkeys(each.data)
    return Declared(files=tuple(files), data=tuple(data))


def task_files(job: Path) -> Iterator[Path]:
    """Yield the files that define a task: the job, its program, runner and search space, and the simulated cluster."""
    declared = _toml(job)
    runner = Path("runners", str(declared.get("runner", {}).get("name", "torch")), "runner.toml")
    yield job
    if ":" in (module := str(declared.get("model", {}).get("entry_point", ""))):
        yield job.parent / f"{module.partition(':')[0]}.py"
    yield runner
    yield from _spaces(_space(job))
    if runner.parent.name == "simulated":
        yield Path("priors", "clusters", f"{_device(declared)}.toml")


def content_hash(path: Path, *, asked: Collection[str] = (), words: bool = True) -> str:
    """Return the SHA-256 of a TOML file's values, or of any other file's bytes; ABSENT if the file cannot be read.

    Comments, texts for readers and device aliases in a TOML file change no figure, so the hash leaves them out. It also leaves out what a
    search space declares for other jobs, and parameters of other jobs that a runner honours.

    Args:
        asked: Parameters for which the jobs give choices. Others that vary only on request count for nothing, nor do their constraints.
        words: Whether a job has a launch line, which may use the search space's words.
    """
    import hashlib  # the help imports this module, and must stay fast

    from oppa.problem.configuration import PARAMETERS

    try:
        content = path.read_bytes()
    except OSError:
        return ABSENT
    if path.suffix == ".toml":
        values = {name: _without_texts(value) for name, value in tomllib.loads(content.decode()).items() if name not in (*ALIASES, *TEXTS)}
        values = _decisive(values, asked=asked, words=words) if path.parent.name == "search_spaces" else values
        if path.name == "runner.toml" and "parameters" in values:
            values["parameters"] = [name for name in values["parameters"] if name in (*PARAMETERS, *asked)]
        content = json.dumps(values, sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()


def _without_texts(value: Any) -> Any:
    """Return a TOML value without the texts for readers that its tables have."""
    if isinstance(value, dict):
        return {name: _without_texts(inner) for name, inner in value.items() if name not in TEXTS}
    return [_without_texts(inner) for inner in value] if isinstance(value, list) else value


def _decisive(space: Mapping[str, Any], *, asked: Collection[str], words: bool) -> dict[str, Any]:
    """Return the part of a search space file that decides the configurations of jobs."""
    declared: Mapping[str, Mapping[str, Any]] = space.get("parameters", {})
    quiet = {name for name, entry in declared.items() if entry.get("on_request") and name not in asked}
    kept = {name: entry for name, entry in declared.items() if name not in quiet}
    if not words:
        kept = {name: {key: value for key, value in entry.items() if key != "words"} for name, entry in kept.items()}
    space = {name: value for name, value in space.items() if name != "framework"}  # the cost model's, whose file _framework returns
    defaults = {name: _default(declared[name]) for name in quiet}
    stated = ((each, _without(str(each.get("expression")), defaults)) for each in space.get("constraint", ()))
    constraints = [{**each, "expression": text} for each, text in stated if text]
    return {**space, **({"parameters": kept} if declared else {}), **({"constraint": constraints} if "constraint" in space else {})}


def _default(entry: Mapping[str, Any]) -> Any:
    """Return the default of a parameter that a search space file declares."""
    values = entry.get("values", [entry.get("low", 1)])
    return entry.get("default", values[0] if isinstance(values[0], str) else min(values))


def _without(text: str, defaults: Mapping[str, Any]) -> str:
    """Return a constraint for jobs in which some parameters have their defaults; empty if their names remain, or it always holds.

    Alternatives that name such parameters alone, and that their defaults make false, are left out.
    """
    if defaults.keys().isdisjoint(re.findall(r"\w+", text)):
        return text
    import ast

    from oppa.problem.expressions import ValueKind, parse

    body = ast.parse(text, mode="eval").body
    operands = body.values if isinstance(body, ast.BoolOp) and isinstance(body.op, ast.Or) else [body]
    named = [(each, {node.id for node in ast.walk(each) if isinstance(node, ast.Name)}) for each in operands]
    quiet = [(ast.unparse(each), names) for each, names in named if not names.isdisjoint(defaults)]
    kinds = {name: ValueKind.of(value) for name, value in defaults.items()}
    if any(not names <= defaults.keys() or parse(part, kinds)(defaults) for part, names in quiet):
        return ""
    return " or ".join(ast.unparse(each) for each, names in named if names.isdisjoint(defaults))


def replay_inputs(declaration: Path, table: Path, *, name: str) -> Inputs:
    """Return the inputs of a user's own replayed table.

    Args:
        name: Name of the table in its declaration; the given file may have another name.
    """
    device = _device(_toml(declaration))
    own = {declaration.name: content_hash(declaration), f"{DATA}{name}": content_hash(table)}
    framework = Path("priors", "frameworks", f"{_toml(declaration).get('framework', OTHER)}.toml")
    files = ("runners/replay/runner.toml", *COST_MODEL, _prior(device).as_posix(), framework.as_posix())
    known = Declared(files=files).inputs()
    return dataclasses.replace(known, files={**known.files, **own})


def logged_inputs(protocol: Mapping[str, Any]) -> Inputs | None:
    """Return the inputs of the runs in a log, or None for an older log without them."""
    if "files" not in protocol:
        return None
    arguments = {"suite": protocol["suite"], "trials": protocol["trials"], "protocol": protocol.get("protocol", 1)}
    return Inputs(arguments=arguments, tasks=tuple(protocol["tasks"]), files=protocol["files"])


def _space(job: Path) -> str:
    """Return the name of a job's search space: its own, or that of its runner."""
    declared = _toml(job)
    runner = Path("runners", str(declared.get("runner", {}).get("name", "torch")), "runner.toml")
    return str(declared.get("space", {}).get("name") or _toml(runner).get("search_space", ""))


def _framework(space: str) -> Path:
    """Return the file that describes a search space's framework to the cost model."""
    stated = (str(_toml(path).get("framework", "")) for path in _spaces(space))
    return Path("priors", "frameworks", f"{next(filter(None, stated), OTHER)}.toml")


def _spaces(name: str) -> Iterator[Path]:
    """Yield the files of a search space and of all spaces that it extends."""
    while name:
        path = Path("search_spaces", f"{name}.toml")
        yield path
        name = str(_toml(path).get("extends", ""))


def _prior(device: str) -> Path:
    path = Path("priors", "hardware", f"{device}.toml")
    return path if (catalog.root() / path).is_file() else path.with_stem(UNKNOWN)


def _device(declared: Mapping[str, Any]) -> str:
    """Return the device that a job file, or a search space file with `[replay]`, names."""
    return str(declared.get("replay", declared).get("cluster", {}).get("device", "CPU"))


def _toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file, or an empty mapping if it cannot be read; its hash is then ABSENT."""
    try:
        return tomllib.loads((catalog.root() / path).read_text())
    except (OSError, ValueError):
        return {}
