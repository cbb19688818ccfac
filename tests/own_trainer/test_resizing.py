"""The newest request for another number of hosts stands, and each request gets an answer."""

from pathlib import Path

import pytest

from oppa.control.own_trainer.resizing import Resizing
from oppa.problem.configuration import Configuration
from oppa.training.run.resize import PresentSize, ResizeRequest
from oppa.training.run.run_folder import RunSpec
from oppa.trials.processes import this_process
from tests.own_trainer.own_runs import OwnRun

TWO = Configuration(dp=2, global_batch=8, micro_batch=2)


def request(folder: Path, hosts: int = 2) -> ResizeRequest:
    made = ResizeRequest(hosts=hosts, configuration=TWO)
    made.write(folder)
    return made


def test_the_newest_request_stands_until_it_is_refused_or_met(tmp_path):
    resizing = Resizing(tmp_path, None, 1)
    assert resizing.request is None
    first = request(tmp_path)
    assert resizing.request == first
    resizing.refuse(first, "no such nodes", excused=False)
    assert resizing.request is None
    second = request(tmp_path)
    assert resizing.request == second, "it may be tried again"
    resizing.began(2)
    assert resizing.request is None
    request(tmp_path, 1)
    assert resizing.request is not None
    request(tmp_path, 2)
    assert resizing.request is None, "the change was withdrawn"


def test_an_answer_names_the_process_the_hosts_and_the_refused_request(tmp_path):
    resizing = Resizing(tmp_path, None, 1)
    refused = request(tmp_path)
    resizing.refuse(refused, "no such nodes", excused=True)
    found = PresentSize.read(tmp_path)
    assert (found.process, found.hosts, found.refused, found.cause, found.excused) == (
        str(this_process()),
        1,
        refused.id,
        "no such nodes",
        True,
    )
    (tmp_path / "steps.jsonl").write_text("{}\n")
    resizing.began(2)
    now = PresentSize.read(tmp_path)
    assert (now.hosts, now.refused, now.size, found.size) == (2, "", 3, 0)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"hosts": 2}', '{"id": "a", "at": 1, "hosts": 2, "configuration": {"dp": 0}}'])
def test_a_damaged_request_is_none(text, tmp_path):
    (tmp_path / "resize.json").write_text(text)
    assert Resizing(tmp_path, None, 1).request is None


def test_a_run_whose_hosts_are_fixed_follows_no_request(tmp_path):
    run = RunSpec(uuid="a", problem=OwnRun(tmp_path).problem, configuration=TWO)
    assert not Resizing(tmp_path, None, 1).can_follow(request(tmp_path), run)
