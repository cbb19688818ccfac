"""`oppa tune` on two hosts of any launcher finishes, is ended and resumed, and runs trials concurrently.

A test module has a class that inherits from `StudyLaws`. Its fixture `tuner` is a `Tuner`, and its fixture `end` a way to end a tuner.
"""

from pathlib import Path
from typing import Any

from oppa.study import Study, Trial
from oppa.trials import processes
from tests.cli.conftest import JOB as ALONE
from tests.launchers.slurm_cluster import until

TRIALS = 5
MEETING = Path(__file__).parent / "runners" / "meeting"


class Tuner:
    """Runs `oppa tune` in a folder of its own."""

    devices_per_host = 1

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        two = f"hosts = 2\ndevices_per_host = {self.devices_per_host}"
        (folder / "job.toml").write_text(ALONE.replace("devices_per_host = 2", two).replace("trials = 6", f"trials = {TRIALS}"))

    def start(self, *options: str) -> Any:
        """Start it; what is returned stands for it."""
        raise NotImplementedError

    def finished(self, running: Any, code: int = 0) -> str:
        """Return what the tuner has printed, once it has ended with this exit code."""
        raise NotImplementedError

    def rewrite(self, **replaced: str) -> None:
        """Other values in the job file."""
        text = (self.folder / "job.toml").read_text()
        for key, value in replaced.items():
            lines = [f"{key} = {value}" if line.startswith(f"{key} = ") else line for line in text.splitlines()]
            text = "\n".join(lines)
        (self.folder / "job.toml").write_text(text)

    def trials(self) -> tuple[Trial, ...]:
        """All trials of the study."""
        with Study(self.folder / "S") as study:
            return tuple(study.trials())

    def has_trials(self, count: int) -> bool:
        """Return True if the study has so many trials."""
        return (self.folder / "S" / "study.db").exists() and len(self.trials()) >= count

    def counted(self) -> list[Trial]:
        """The trials of the search that count."""
        return [trial for trial in self.trials() if trial.counts and trial.purpose == "search"]

    def living(self) -> set[processes.Process]:
        """The study's processes, on all hosts."""
        with Study(self.folder / "S") as study:
            return processes.tagged(lambda environment: environment.get(processes.STUDY_TAG) == study.uuid)


class StudyLaws:
    """States what holds for a study on two hosts of every launcher."""

    def test_a_study_of_two_hosts_finishes(self, tuner):
        said = tuner.finished(tuner.start("--json"))
        assert len(tuner.counted()) == TRIALS
        assert {trial.outcome for trial in tuner.trials()} <= {"completed", "terminated_early", "out_of_memory"}
        assert "winner" in said
        until(lambda: not tuner.living())

    def test_a_tuner_that_is_ended_leaves_no_process_and_resumes(self, tuner, end):
        running = tuner.start()
        until(lambda: tuner.has_trials(3), timeout_s=120)
        assert tuner.living()
        end(running)
        until(lambda: not tuner.living(), lambda: str(tuner.living()))
        before = {trial.id for trial in tuner.counted()}
        tuner.finished(tuner.start())
        assert len(tuner.counted()) == TRIALS
        assert before <= {trial.id for trial in tuner.counted()}

    def test_trials_run_side_by_side_where_there_is_room(self, tuner):
        tuner.rewrite(hosts="1", devices_per_host="2", name=f'"{MEETING}"', trial_time='"120 s"')
        tuner.finished(tuner.start())
        trials = [trial for trial in tuner.trials() if trial.purpose == "search"]
        assert len({trial.configuration for trial in trials}) == len(trials) == TRIALS
        assert {trial.outcome for trial in trials} <= {"completed", "terminated_early"}
        assert (tuner.folder / "S" / "tuner1.log").exists()
        until(lambda: not tuner.living())
