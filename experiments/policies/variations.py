"""Run the paper's other experiments at our size (DYNAMIX, section VI): another optimizer, other workers, and a transferred policy."""

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from experiments.lib.recorder import Recorder
from experiments.policies.run import EXPLORED, JOB, LEARNED, LEARNED_FIRST, PROPORTIONAL, STATIC, WEIGHTS, explored, learn
from oppa import catalog
from oppa.errors import EnvironmentLackingError
from oppa.report.record import write_texts

CPUS = "cpus_per_device = [0.5, 0.5, 0.25, 0.125]"
DEVICES = "devices_per_host = 4"
OF = "."
"""Separator between a variation and a policy in the name of a record."""


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyVariation:
    """Describes a job: the example's with some lines changed."""

    name: str
    title: str
    """Title in tables."""
    lines: Mapping[str, str]
    """Lines of the job file and their replacements."""
    workers: int = 4
    hosts: tuple[str, ...] = ()
    """Arguments of `oppa emulate`; if empty, the job runs directly on this machine."""
    learned: bool = True
    """The policy is trained on this job; otherwise that of the example is transferred."""

    def job(self, text: str) -> str:
        """Return the job file's text, made from the example's."""
        for line, changed in self.lines.items():
            assert text.count(f"\n{line}\n") == 1, line
            text = text.replace(f"\n{line}\n", f"\n{changed}\n")
        return text


VARIATIONS = (
    PolicyVariation("sgd", "SGD", {"learning_rate = 3e-3": 'optimizer = "sgd"\nlearning_rate = 0.2'}),
    PolicyVariation("two", "2 workers", {DEVICES: "devices_per_host = 2", CPUS: "cpus_per_device = [1.0, 0.25]"}, workers=2),
    PolicyVariation(
        "eight",
        "8 workers",
        {DEVICES: "devices_per_host = 8", CPUS: "cpus_per_device = [0.25, 0.25, 0.25, 0.25, 0.125, 0.125, 0.125, 0.0625]"},
        workers=8,
    ),
    PolicyVariation("even", "even workers", {CPUS: "cpus_per_device = 0.34"}),
    PolicyVariation(
        "links",
        "even workers, slow links",
        {DEVICES: 'hosts = "allocation"\ndevices_per_host = "allocation"', CPUS: ""},
        hosts=("--hosts", "4", "--cpus-per-rank", "0.34", "--bandwidth", "100mbit", "--latency", "2ms"),
    ),
    PolicyVariation(
        "deep", "a deeper model, policy carried over", {"layers = 3": "layers = 6", "hidden = 48": "hidden = 32"}, learned=False
    ),
)


def run(folder: Path, work: Path, seeds: Sequence[int], tell: Callable[[str], None]) -> None:
    """Train all runs that are not in `folder` yet; those of `policies.run` must be there, as one variation uses their policy.

    Raises:
        EnvironmentLackingError: a run fails.
    """
    for variation in VARIATIONS:
        recorder = Recorder(job=_written(variation, work / "jobs"), folder=folder, work=work, hosts=variation.hosts, tell=tell)
        weights = _weights(variation, recorder)
        setting = f"dp={variation.workers},micro_batch={LEARNED_FIRST // variation.workers}"
        learned = explored(recorder, weights, setting, {f"{variation.name}-explored-{seed}": seed for seed in EXPLORED.values()})
        for seed in seeds:
            for policy, words in ((STATIC, []), (PROPORTIONAL, ["--policy", PROPORTIONAL]), (LEARNED, learned)):
                try:
                    recorder.train(f"{variation.name}{OF}{policy}", seed, setting, *words)
                except EnvironmentLackingError as error:
                    if policy != LEARNED:
                        raise
                    tell(f"{variation.name}: no {LEARNED}: {error.message}")  # the exploring runs do not support the policy


def _written(variation: PolicyVariation, place: Path) -> Path:
    """Write the job file and its model, and return the job file's path, relative to the checkout."""
    example = catalog.root() / JOB
    path = place / f"{variation.name}.toml"
    write_texts(place, {path.name: variation.job(example.read_text())})
    shutil.copy(example.with_suffix(".py"), place)
    return path.relative_to(catalog.root())


def _weights(variation: PolicyVariation, recorder: Recorder) -> Path:
    """Return the weights of the policy: trained on this job, or transferred."""
    if not variation.learned:
        return recorder.folder / WEIGHTS
    path = recorder.folder / f"{variation.name}.safetensors"
    learn(recorder, f"{variation.name}-learn", path)
    return path
