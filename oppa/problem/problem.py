"""Define the problem of a study: which configuration of this space trains this model on this cluster fastest?"""

import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from oppa import catalog
from oppa.errors import JobError
from oppa.problem.cluster import Cluster
from oppa.problem.command import LaunchCommand, argument_of
from oppa.problem.configuration import Configuration
from oppa.problem.file_keys import keys_for
from oppa.problem.framework_variables import MEGATRON, megatron_variables
from oppa.problem.model import COMPUTED, MODEL_HINT, Model
from oppa.problem.objective import Objective
from oppa.problem.software import Software
from oppa.problem.space import Facts, SearchSpace
from oppa.problem.templates import spelled
from oppa.problem.trace import ModelTrace
from oppa.problem.training import LauncherChoice, Limits, ProxyChoice, RunOptions, SearchOptions, TrackingChoice, Training
from oppa.problem.writes_file import framework_of, trial_options

if TYPE_CHECKING:  # numpy is slow to import, and not every command enumerates candidates
    from oppa.problem.candidates import Candidates

NOT_DECISIVE = ("name", "limits", "strategy", "recipe", "launcher", "software", "trace", "proxy", "tracking")
"""Keys of a stored problem that are not part of its fingerprint."""
_NAME_LENGTH = 100
_NOT_IN_NAMES = re.compile(r"[^\w.-]+")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Describes a job to tune: complete, validated, and independent of the file it came from."""

    name: str
    """Name of the job: letters, digits, `_`, `.` and `-`; whatever else a file is called becomes `-`."""
    stated_model: Model | None
    """The model, if the job states it; `model` is for whatever needs one."""
    global_batch: int
    """Sequences per optimizer step."""
    cluster: Cluster
    runner: Path
    """Folder of the runner."""
    command: LaunchCommand | None = None
    """Launch line of the user's own program, if the runner starts one."""
    training: Training
    space: SearchSpace
    limits: Limits
    search_options: SearchOptions = dataclasses.field(default_factory=SearchOptions)
    run_options: RunOptions = dataclasses.field(default_factory=RunOptions)
    launcher: LauncherChoice = dataclasses.field(default_factory=LauncherChoice)
    baseline: Configuration | None = None
    """Configuration that the user runs at present.

    It is the first trial, and the winner is compared with it instead of the default.
    """
    proxy: ProxyChoice | None = None
    """The smaller size at which the search runs first; None: it runs at full size."""
    tracking: TrackingChoice | None = None
    """The trackers that record the study or the run; None: there are none."""
    software: Software | None = None
    """Software that trials run on; None before it is detected, and if nothing is started."""
    trace: ModelTrace | None = None
    """Parameters, activations and operations of the model's own module; None before it is traced, and if there is none."""

    def __post_init__(self) -> None:
        """Make the name one word, as scripts, sources and Slurm have it in their text."""
        object.__setattr__(self, "name", one_word(self.name))

    @property
    def model(self) -> Model:
        """Return the model; raises JobError if the job states none, as one of a program that only its launch line describes."""
        if self.stated_model is None:
            raise JobError(f"the job `{self.name}` has no [model], and this needs its dimensions", hint=MODEL_HINT)
        return self.stated_model

    def candidates(self) -> "Candidates":
        """Return every valid configuration."""
        from oppa.problem.candidates import enumerate_candidates

        return enumerate_candidates(self.space)

    @property
    def objective(self) -> Objective:
        """Return what the search maximises: the throughput, or what a program prints."""
        return self.command.steps.objective if self.command and self.command.steps else Objective()

    @property
    def rates_are_steps(self) -> bool:
        """Return whether rates are in steps per second, and neither an objective nor tokens without a model that states those of a step."""
        steps = self.command.steps if self.command else None
        groups = re.compile(steps.pattern).groupindex.keys() if steps else set[str]()
        in_tokens = self.stated_model is None and "tokens_per_s" in groups and not groups & {"s", "ms", "per_s"}
        return self.objective.is_throughput and not in_tokens

    @property
    def has_prior(self) -> bool:
        """Return whether the cost model applies to the job: its model is stated, and the objective is throughput."""
        return self.stated_model is not None and self.objective.is_throughput

    @property
    def pinned_command(self) -> LaunchCommand | None:
        """Return the launch line as trials start it, with the programs that PATH resolved when the study began."""
        return self.command.pinned(self.software.programs) if self.command and self.software else self.command

    @property
    def restored(self) -> Self:
        """Return the problem whose launch line writes what the user means it to write, as the winner's does, unlike in trials."""
        if self.command is None:
            return self
        if originals := self.command.originals:
            return dataclasses.replace(self, command=self.command.restored, space=self.space.without_options(originals.options))
        words = (word for known in self.space.parameters for word in argument_of(known).templates)
        options = trial_options(words, framework_of(self.space.name))
        return dataclasses.replace(self, space=self.space.without_options(options)) if options else self

    def launch_line(self, configuration: Configuration) -> LaunchCommand | None:
        """Return the pinned launch line, with the search space's words and keys for parameters that matter and that it does not name."""
        line = self.pinned_command
        if line is None:
            return None
        named = line.parameters - {"dp"}
        own = [known for known in self.space.active(configuration) if known.name not in named]
        line = dataclasses.replace(line, arguments=(*line.arguments, *(argument_of(known) for known in own if known.words)))
        keys = {key: to for known in own for key, to in keys_for(known.keys, configuration[known.name]).items()}
        return line.with_keys(keys) if keys else line

    def variables(self, configuration: Configuration) -> dict[str, str]:
        """Return the environment variables that parameters set in a trial."""
        return {known.env: spelled(configuration[known.name]) for known in self.space.active(configuration) if known.env}

    def default_variables(self, configuration: Configuration) -> dict[str, str]:
        """Return the environment variables that the program's framework requires; those of the user's environment take precedence."""
        line = self.command
        is_megatron = line and (self.space.framework == MEGATRON or (line.steps is not None and line.steps.format == MEGATRON))
        return megatron_variables(configuration, self.cluster, line.argv) if line and is_megatron else {}

    @property
    def fingerprint(self) -> str:
        """Return the SHA-256 of everything that determines results.

        Those in `NOT_DECISIVE` do not, so a study may continue with others. Software does, but it is not included. If a study was
        measured on other software, it is refused with an error that names both.
        """
        values = self.to_dict()
        values["runner"] = self.runner.name
        values["space"].pop("framework", None)  # what the prior predicts changes no result
        values["space"].pop("framework_text", None)
        values["cluster"].pop("hardware", None)
        for name in ("config", *COMPUTED):  # the dimensions of a configuration are decisive, wherever its file lies
            (values["model"] or {}).pop(name, None)
        values["space"]["constraints"] = [entry["expression"] for entry in values["space"]["constraints"]]
        decisive = {key: value for key, value in values.items() if key not in NOT_DECISIVE}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as they are written to JSON, enough to build the problem again without any of its files."""
        return {
            "name": self.name,
            "model": self.stated_model.to_dict() if self.stated_model else None,
            "global_batch": self.global_batch,
            "cluster": self.cluster.to_dict(),
            "runner": self.runner.name if self.runner.parent == catalog.root() / "runners" else str(self.runner),
            **({"command": self.command.to_dict()} if self.command else {}),
            "training": self.training.to_dict(),
            "space": self.space.to_dict(),
            "limits": self.limits.to_dict(),
            "strategy": dataclasses.asdict(self.search_options),
            "recipe": dataclasses.asdict(self.run_options),
            **({"launcher": dataclasses.asdict(self.launcher)} if self.launcher != LauncherChoice() else {}),
            **({"baseline": self.baseline.to_dict()} if self.baseline else {}),
            **({"proxy": dataclasses.asdict(self.proxy)} if self.proxy else {}),
            **({"tracking": dataclasses.asdict(self.tracking)} if self.tracking else {}),
            **({"software": self.software.to_dict()} if self.software else {}),
            **({"trace": self.trace.to_dict()} if self.trace else {}),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the problem that `to_dict` wrote; raises InputError if the runner is missing."""
        model = Model(**values["model"]) if values["model"] else None
        cluster, training = Cluster.from_dict(values["cluster"]), Training(**values["training"])
        facts = facts_of(model, values["global_batch"], cluster, training)
        return cls(
            name=values["name"],
            stated_model=model,
            global_batch=values["global_batch"],
            cluster=cluster,
            runner=catalog.find("runners", values["runner"]),
            command=LaunchCommand.from_dict(values["command"]) if values.get("command") else None,
            training=training,
            space=SearchSpace.from_dict(values["space"], facts),
            limits=Limits(**values["limits"]),
            search_options=SearchOptions.from_dict(values["strategy"]),
            run_options=RunOptions(**values.get("recipe", {})),
            launcher=LauncherChoice(**values.get("launcher", {})),
            baseline=Configuration.from_dict(values["baseline"]) if values.get("baseline") else None,
            proxy=ProxyChoice(**values["proxy"]) if values.get("proxy") else None,
            tracking=TrackingChoice.from_dict(values["tracking"]) if values.get("tracking") else None,
            software=Software.from_dict(values["software"]) if values.get("software") else None,
            trace=ModelTrace.from_dict(values["trace"]) if values.get("trace") else None,
        )


def one_word(name: str) -> str:
    """Return the name of a job: letters, digits, `_`, `.` and `-`, with a dash in place of anything else."""
    return _NOT_IN_NAMES.sub("-", name).strip(".-")[:_NAME_LENGTH] or "job"


def facts_of(model: Model | None, global_batch: int, cluster: Cluster, training: Training) -> Facts:
    """Return the values that expressions of a search space may name in addition to its parameters; those of a model if there is one."""
    dimensions = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len", "experts")
    kinds = ("gated", "biases", "qkv_bias", "tied", "norm", "learned_positions", "token_types", "patch", "causal")
    sizes = ("devices", "hosts", "devices_per_host", "device")
    return {
        **({name: getattr(model, name) for name in (*dimensions, *kinds)} if model else {}),
        **{name: getattr(cluster, name) for name in sizes},
        "global_batch": global_batch,
        "precision": training.precision,
        "gradient_clipping": training.gradient_clipping,
        **({"own_module": bool(model.entry_point)} if model else {}),
    }
