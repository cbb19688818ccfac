"""Two runs of own trainers that name one job of one control service."""

import pytest

from oppa.control.policies.goodput import GoodputPolicy
from oppa.control.service.address import TOKEN
from oppa.control.training_session.callback import RunCallback
from oppa.errors import RunError
from oppa.table import Table
from oppa.training.run import ledger
from tests.control.services import serving
from tests.own_trainer.own_runs import OwnRun

pytestmark = pytest.mark.slow

SPEEDS = {(8, "none"): 100.0, (16, "none"): 95.0}


class SecondRun(RunCallback):
    """Starts a second run once the service has heard of the first one, and then stops the first one."""

    def __init__(self, service, start) -> None:
        self._service, self._start = service, start

    def stop_requested(self) -> bool:
        job = self._service.jobs.get("my-job")
        if job is None or job.number < 5:
            return False
        if self._start is not None:
            start, self._start = self._start, None
            start()
        return True


def test_a_second_run_of_a_name_ends_with_an_error_before_its_first_step_until_the_first_has_ended(tmp_path, monkeypatch):
    first, second = (OwnRun(tmp_path / name, "--noise", "50", samples=20_000) for name in ("first", "second"))
    table = Table.read(first.table(tmp_path / "t", SPEEDS))
    with serving(tmp_path / "service", table, GoodputPolicy) as (service, port):
        monkeypatch.setenv(TOKEN, service.tokens.of_job("my-job"))
        there = f"my-job@127.0.0.1:{port}"

        def start_second() -> None:
            with pytest.raises(RunError, match="another run is connected to the control service as `my-job`") as error:
                second.train(control=there)
            assert f"--control my-job-2@127.0.0.1:{port}" in error.value.hint and "end the other run" in error.value.hint

        first.train(control=there, callback=SecondRun(service, start_second))
        assert first.events(ledger.STEP) and not second.events(ledger.STEP)
        taken = service.jobs["my-job"].number
        second.train(control=there, callback=SecondRun(service, None))
        assert second.events(ledger.STEP) and service.jobs["my-job"].number > taken
        first.train(control=there, callback=SecondRun(service, None))
