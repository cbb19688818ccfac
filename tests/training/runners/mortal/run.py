"""A run as `runners/torch/run.py` trains it, but for what `spell` in the run's folder says, which happens once.

{"rank": 1, "phase": "rebuild", "deed": "die" | "allocate" | "raise"}     when this rank comes to this phase of a change of layout
{"rank": 1, "step": 5, "deed": "die"}                                      after this step; rank 0 alone counts steps
{"rank": 1, "step": 5, "deed": "poison"}                                   in this step: its gradients are no numbers
{"rank": 0, "step": 5, "deed": "roll_back", "before_step": 3, "configuration": {...}}    after this step somebody requests that
{"rank": 0, "step": 5, "deed": "await", "file": "order.json"}              after this step, until the run's folder has this file
"""

import json
import os
import signal
import sys
import time

from oppa import catalog

sys.path.insert(0, str(catalog.root() / "runners"))
import rank as ranks
import torch

from oppa.problem.configuration import Configuration
from oppa.training import replica as replicas
from oppa.training.run.attempt import Attempt
from oppa.training.run.run_controller import ControllerDecision
from oppa.trials.trial_folder import TrialSpec


def run(folder, rank, world):
    return ranks.guarded(train, folder, rank, world)


class Spell:
    def __init__(self, folder, rank):
        self.path, self.rank = folder / "spell", rank
        self.what = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.mine = self.what.get("rank") == rank
        self.stepped = None

    def cast(self):
        """Once for all attempts: the file goes first."""
        self.path.unlink(missing_ok=True)
        self.mine = False
        deed = self.what["deed"]
        if deed == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif deed == "raise":
            raise RuntimeError("a spell")
        elif deed == "await":
            while not (self.path.parent / self.what["file"]).exists():
                time.sleep(0.05)
        elif deed == "allocate":
            replicas.Replica.__init__ = _failing(replicas.Replica.__init__)

    def at_phase(self, phase):
        if self.mine and self.what.get("phase") == phase:
            self.cast()

    def at_step(self, step):
        if self.mine and self.what.get("step") == step.number and self.what["deed"] in ("die", "await"):
            self.cast()

    # What a controller does.

    def step(self, facts):
        self.stepped = facts.step

    def changed(self, facts):
        self.facts = facts

    def wanted(self, present):
        if not self.mine or self.what["deed"] != "roll_back" or self.stepped != self.what["step"] - 1:
            return None
        self.cast()
        return ControllerDecision(configuration=Configuration.from_dict(self.what["configuration"]), before_step=self.what["before_step"])

    def poison(self):
        """Let the step of this number fail, counted from the start of the process."""
        if self.mine and self.what["deed"] == "poison":
            replicas.Replica.accumulate = _poisoned(replicas.Replica.accumulate, self.what["step"])


def _failing(init):
    """A constructor that fails once, having built all it should."""

    def wrapped(self, *arguments, **options):
        replicas.Replica.__init__ = init
        init(self, *arguments, **options)
        torch.empty(1 << 60)

    return wrapped


def _poisoned(accumulate, due):
    """A step that is the `due`-th: the gradient of a weight is not a number."""
    taken = 0

    def wrapped(self, batch):
        nonlocal taken
        hook = next(self.stages[0].parameters()).register_hook(lambda gradient: gradient * float("nan")) if taken == due else None
        taken += 1
        loss = accumulate(self, batch)
        if hook is not None:
            hook.remove()
        return loss

    return wrapped


def train(trial, rank, world):
    folder = trial.folder.parents[1]
    spell = Spell(folder, rank)
    spell.poison()

    def on_step(step):
        trial.measured(step.step_time_s, loss=step.loss if step.updated else None)
        spell.at_step(step)

    controller = spell if spell.what.get("deed") == "roll_back" else None
    attempt = Attempt(folder, stop_requested=trial.stop_requested, on_step=on_step, on_phase=spell.at_phase, controller=controller)
    attempt.make(TrialSpec.read(trial.folder), rank=rank, world=world, rendezvous=os.environ["OPPA_RENDEZVOUS"])
    if rank == 0:
        trial.end("completed")
