"""Train digits on four workers of different speed, under each policy and with each seed."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from experiments.lib.recorder import Recorder
from experiments.lib.variants import Variant, rotated
from experiments.norm_test.schemes import fastest_at
from oppa.table import Table

JOB = Path("examples", "digits.toml")
BATCHES = (32, 64, 128, 256)
"""Global batches of the table and of static runs."""
FIRST = 32
"""Initial batch of adaptive policies, except the learned one."""
LEARNED_FIRST = 64
"""Initial batch of the learned policy, which its actions are scaled to: that of the job."""
STATIC, PROPORTIONAL, LEARNED = "static", "proportional", "rl"
ADAPTIVE = ("stagewise", "critical-batch", "norm-test", "goodput")
WEIGHTS = "rl.safetensors"
"""File of the learned weights in the record's folder."""
EXPLORED = {f"explored-{number}": 1000 + number for number in range(4)}
"""Runs that check the learned policy, and their seeds."""
EPISODES, WINDOW, EXPLORED_SAMPLES = 500, 5, 40_000


def run(folder: Path, work: Path, seeds: Sequence[int], tell: Callable[[str], None]) -> None:
    """Train all runs that are not in `folder` yet, seed by seed; `work` receives the ledgers.

    Raises:
        EnvironmentLackingError: a run fails.
    """
    recorder = Recorder(job=JOB, folder=folder, work=work, tell=tell)
    table = recorder.table(BATCHES)
    weights, begins = folder / WEIGHTS, fastest_at(table, LEARNED_FIRST)
    learn(recorder, "learn", weights)
    learned = explored(recorder, weights, f"dp={begins.dp},micro_batch={begins.micro_batch}", EXPLORED)
    every = [*((each, ["--policy", each.policy]) for each in schemes(table)), (Variant(LEARNED, LEARNED, begins), learned)]
    for seed in seeds:
        for scheme, arguments in rotated(every, seed):
            recorder.train(scheme.name, seed, scheme.begins, *arguments)


def learn(recorder: Recorder, name: str, weights: Path) -> None:
    """Train a policy on the recorder's job, unless its weights are there."""
    how = ["--episodes", str(EPISODES), "--set", f"learning.window={WINDOW}", "--out", recorder.typed(weights)]
    recorder.once(name, weights, "train-policy", str(recorder.job), *how)


def explored(recorder: Recorder, weights: Path, setting: str, seeds: Mapping[str, int]) -> list[str]:
    """Train the runs that check a learned policy, and return the arguments of `oppa train` under this policy.

    Args:
        setting: Configuration of the runs.
        seeds: Their seeds by name.
    """
    weighed, evaluated = ["--weights", recorder.typed(weights)], list[str]()
    for name, seed in seeds.items():
        place = recorder.work / name
        explore = ["--policy", "explore", *weighed, "--set", f"train.samples={EXPLORED_SAMPLES}", "--set", f"training.seed={seed}"]
        recorder.once(name, place, "train", str(recorder.job), setting, *explore, "--run", recorder.typed(place))
        evaluated += ["--eval-run", recorder.typed(place)]
    return ["--policy", LEARNED, *weighed, *evaluated]


def schemes(table: Table) -> list[Variant]:
    """Return the schemes that need no learned policy."""
    sized = [Variant(f"{policy}-{batch}", policy, fastest_at(table, batch)) for policy in (STATIC, PROPORTIONAL) for batch in BATCHES]
    return [*sized, *(Variant(name, name, fastest_at(table, FIRST)) for name in ADAPTIVE)]
