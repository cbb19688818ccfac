"""Follow an attempt whose trainer is this process: the test calls `oppa_client`, and oppa's reader reads what it wrote."""

from pathlib import Path

from oppa.control.own_trainer.attempt import OwnAttempt
from oppa.control.own_trainer.contract import AttemptTerms, PlanTerms
from oppa.control.own_trainer.run_book import RunBook
from oppa.training.run.run_controller import ControllerDecision
from oppa.training.run.run_folder import RunSpec, new_attempt
from tests.own_trainer.folders import ranks
from tests.own_trainer.own_runs import OwnRun


class Followed:
    """Holds an attempt of rank 0 of a program, and oppa's reader of its folder."""

    def __init__(self, folder: Path) -> None:
        own = OwnRun(folder, train=["keep=3"])
        self.own, first = own, own.configuration()
        spec = RunSpec(uuid="u", problem=own.problem, configuration=first)
        spec.write(own.run)
        self.book = RunBook(own.run, spec)
        self.folder = new_attempt(own.run)
        self.terms = AttemptTerms(
            run="u",
            configuration=first,
            total_samples=None,
            step=0,
            samples=0,
            checkpoint=None,
            saved_by=None,
            plan=PlanTerms.first(first, own.problem.run_options),
            leave_timeout_s=60.0,
        )
        self.terms.write(self.folder)
        (self.folder / "trial.json").write_text("{}")
        self.now_s = 1000.0
        self.attempt = OwnAttempt(self.folder, self.terms, self.book, clock=lambda: self.now_s)
        (self.program,) = ranks(self.folder, 1)

    def resumed(self, terms: AttemptTerms) -> OwnAttempt:
        """Begin another attempt."""
        self.folder, self.terms = new_attempt(self.own.run), terms
        terms.write(self.folder)
        (self.folder / "trial.json").write_text("{}")
        (self.program,) = ranks(self.folder, 1)
        return OwnAttempt(self.folder, terms, self.book)

    def step(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.program.step(samples=self.program.plan.global_batch)

    def save(self, name: str) -> Path:
        path = self.own.folder.parent / name
        path.write_text(str(self.program.plan.step))
        self.program.saved(path)
        return path

    def ask(self, batch: int, **limits: int) -> None:
        self.attempt.ask(ControllerDecision(configuration=self.own.configuration(batch), reason="test"), **limits)
