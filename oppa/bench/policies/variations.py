"""The paper's other experiments at our size (DYNAMIX, section VI): another optimizer, other workers, and a policy that is carried over."""

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from oppa import catalog
from oppa.bench.policies.real import EPISODES, EXPLORED_SAMPLES, JOB, LEARNED, LEARNED_FIRST, PROPORTIONAL, STATIC, WEIGHTS, WINDOW
from oppa.bench.recorder import Recorder
from oppa.errors import EnvironmentLackingError
from oppa.report.record import write_texts

CPUS = "cpus_per_device = [0.5, 0.5, 0.25, 0.125]"
DEVICES = "devices_per_host = 4"
OF = "."
"""Between a variation and a policy, in the name of a record."""
EXPLORED = (1000, 1001, 1002, 1003)
"""Seeds of the runs by which a policy is checked."""


@dataclasses.dataclass(frozen=True, slots=True)
class Variation:
    """The example's job with some lines changed."""

    name: str
    title: str
    """For people."""
    lines: Mapping[str, str]
    """Of the job file, and what they become."""
    workers: int = 4
    hosts: tuple[str, ...] = ()
    """The words of `oppa netlab` that it runs under; none: on this machine as it is."""
    learned: bool = True
    """On this job; else what was learned on the example is carried over."""

    def job(self, text: str) -> str:
        """The job file, from the example's."""
        for line, changed in self.lines.items():
            assert text.count(f"\n{line}\n") == 1, line
            text = text.replace(f"\n{line}\n", f"\n{changed}\n")
        return text


VARIATIONS = (
    Variation("sgd", "SGD", {"learning_rate = 3e-3": 'optimizer = "sgd"\nlearning_rate = 0.2'}),
    Variation("two", "2 workers", {DEVICES: "devices_per_host = 2", CPUS: "cpus_per_device = [1.0, 0.25]"}, workers=2),
    Variation(
        "eight",
        "8 workers",
        {DEVICES: "devices_per_host = 8", CPUS: "cpus_per_device = [0.25, 0.25, 0.25, 0.25, 0.125, 0.125, 0.125, 0.0625]"},
        workers=8,
    ),
    Variation("even", "even workers", {CPUS: "cpus_per_device = 0.34"}),
    Variation(
        "links",
        "even workers, slow links",
        {DEVICES: 'hosts = "allocation"\ndevices_per_host = "allocation"', CPUS: ""},
        hosts=("--hosts", "4", "--cpus-per-rank", "0.34", "--bandwidth", "100mbit", "--latency", "2ms"),
    ),
    Variation("deep", "a deeper model, policy carried over", {"layers = 3": "layers = 6", "hidden = 48": "hidden = 32"}, learned=False),
)


def run(folder: Path, work: Path, seeds: Sequence[int], tell: Callable[[str], None]) -> None:
    """Do all runs that are not in `folder` yet, behind those of `real`, whose policy one of them takes.

    Raises:
        EnvironmentLackingError: if a run fails.
    """
    for variation in VARIATIONS:
        recorder = Recorder(job=_written(variation, work / "jobs"), folder=folder, work=work, hosts=variation.hosts, tell=tell)
        weights = _weights(variation, recorder)
        setting = f"dp={variation.workers},micro_batch={LEARNED_FIRST // variation.workers}"
        weighed, recorded = ["--weights", recorder.typed(weights)], list[str]()
        for seed in EXPLORED:
            name = f"{variation.name}-explored-{seed}"
            place, explore = work / name, ["--policy", "explore", *weighed, "--samples", str(EXPLORED_SAMPLES), "--seed", str(seed)]
            recorder.once(name, place, "train", str(recorder.job), setting, *explore, "--run", recorder.typed(place))
            recorded += ["--recorded", recorder.typed(place)]
        learned = ["--policy", LEARNED, *weighed, *recorded]
        for seed in seeds:
            for policy, words in ((STATIC, []), (PROPORTIONAL, ["--policy", PROPORTIONAL]), (LEARNED, learned)):
                try:
                    recorder.train(f"{variation.name}{OF}{policy}", seed, setting, *words)
                except EnvironmentLackingError as error:
                    if policy != LEARNED:
                        raise
                    tell(f"{variation.name}: no {LEARNED}: {error.message}")  # what was explored does not speak for it


def _written(variation: Variation, place: Path) -> Path:
    """The job file and its model; where it is, from the checkout."""
    example = catalog.root() / JOB
    path = place / f"{variation.name}.toml"
    write_texts(place, {path.name: variation.job(example.read_text())})
    shutil.copy(example.with_suffix(".py"), place)
    return path.relative_to(catalog.root())


def _weights(variation: Variation, recorder: Recorder) -> Path:
    """Learned on this job, or carried over."""
    if not variation.learned:
        return recorder.folder / WEIGHTS
    path = recorder.folder / f"{variation.name}.safetensors"
    how = ["--episodes", str(EPISODES), "--window", str(WINDOW), "--out", recorder.typed(path)]
    recorder.once(f"{variation.name}-learn", path, "learn", str(recorder.job), *how)
    return path
