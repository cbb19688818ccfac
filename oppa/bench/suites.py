"""List the suites of tasks on which designers are compared.

Each suite states where its tasks come from, the inputs that define them, and the variations that it adds to the plain protocol. This module
imports nothing heavy, because `oppa bench` lists the records of all suites.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from oppa.bench.declared import COST_MODEL, CPU_JOB, CPU_TABLE, DATA, REPLAY, SIMULATED, Declared, simulated_job

ALL = "all"
"""Name that stands for every suite."""
MOST_TASKS = 8
"""Number of tasks of one suite when every suite runs."""
OWN_SEEDS, PEER_SEEDS = 5, 2
"""Seeds of `oppa` and of the others then."""
DISTORTED = ("slow-layout", "time-triple", "memory-double", "memory-half", "ranks-reversed", "hidden-knob")
"""Distortions of the suite `adversarial`."""
OFF = ("prior-25", "prior-50")
"""Variations of OPPA's table 6: priors that are off by up to so much."""
UNDOUBTED = "no-doubts"
"""Variation of the suite `adversarial` that shows what doubts cost where the prior is right."""
MISLED = ("llama-2-7b", "llama-3.2-1b", "moe", "qwen2-1.5b")
"""Simulated tasks of the suite `adversarial`."""
MISLED_REPLAYS = 4
"""Number of its replayed tasks."""

Source = Literal["table", "jobs", "measured", "programs", "misled"]
"""The kind of tasks: rows of a table, simulated jobs, one measured job, synthetic programs, or tasks of other suites."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskSuite:
    """Describes a suite of tasks."""

    about: str
    source: Source
    declared: Declared
    replay: str = ""
    """Search space file with `[replay]` of a suite whose tasks are rows of a table; one of OPPA_DATA begins with DATA."""
    variations: tuple[str, ...] = ()
    """Variations that always run."""
    recorded: tuple[str, ...] = ()
    """Variations that run when every suite runs."""
    designers: tuple[str, ...] = ()
    """Designers that it compares; empty for all."""

    @property
    def is_misled(self) -> bool:
        """Return whether the suite varies the tasks of others."""
        return self.source == "misled"


_REPLAYED = Declared(
    files=(
        REPLAY.as_posix(),
        "runners/replay/runner.toml",
        *COST_MODEL,
        "priors/hardware/H100.toml",
        "priors/frameworks/nanotron.toml",
    ),
    data=("nanotron_h100.csv",),
)


def _jobs(*names: str) -> Declared:
    return Declared(jobs=tuple(map(simulated_job, names)), cost_model=True)


SUITES: Mapping[str, TaskSuite] = {
    "replay": TaskSuite(
        about="nanotron's published runs on H100", source="table", declared=_REPLAYED, replay=REPLAY.as_posix(), recorded=OFF
    ),
    "aleph-8k": TaskSuite(
        about="published runs of LLaMA 13B and 30B on A100 with 8,192 tokens",
        source="table",
        declared=Declared(
            files=("runners/replay/runner.toml", *COST_MODEL, "priors/hardware/A100-80GB.toml", "priors/frameworks/other.toml"),
            data=("aleph_alpha_8k.csv", "aleph_alpha_8k.toml"),
        ),
        replay=f"{DATA}aleph_alpha_8k.toml",
    ),
    "cpu": TaskSuite(
        about="a job on CPUs whose configurations were all measured",
        source="measured",
        declared=Declared(jobs=(CPU_JOB,), files=(CPU_TABLE.as_posix(),), cost_model=True),
    ),
    "simulated": TaskSuite(about="OPPA's six scenarios, simulated", source="jobs", declared=_jobs(*SIMULATED), recorded=OFF),
    "moe": TaskSuite(about="simulated mixtures of experts", source="jobs", declared=_jobs("mixtral-8x7b", "moe-16e", "moe-64e")),
    "long-context": TaskSuite(
        about="simulated jobs whose ranks split long sequences", source="jobs", declared=_jobs("long-1b-64k", "long-8b-32k", "long-8b-128k")
    ),
    "fsdp": TaskSuite(about="simulated jobs under FSDP and HSDP", source="jobs", declared=_jobs("fsdp-1.5b", "fsdp-7b", "fsdp-13b")),
    "black-box": TaskSuite(about="synthetic programs with knobs of their own and no stated model", source="programs", declared=Declared()),
    "adversarial": TaskSuite(
        about="tasks of `replay` and `simulated` with priors that mislead",
        source="misled",
        declared=dataclasses.replace(_REPLAYED, jobs=_jobs(*MISLED).jobs, cost_model=True),
        variations=(*DISTORTED, UNDOUBTED),
        designers=("oppa", "oppa-no-prior", "random"),
    ),
}
"""Suites by name, in the order in which they run."""


def _every() -> Declared:
    """Return the inputs of all suites together."""
    declared = [suite.declared for suite in SUITES.values()]
    jobs, files, data = (dict.fromkeys(each for one in declared for each in getattr(one, name)) for name in ("jobs", "files", "data"))
    return Declared(jobs=tuple(jobs), files=tuple(files), data=tuple(data), cost_model=True)


EVERY = _every()
