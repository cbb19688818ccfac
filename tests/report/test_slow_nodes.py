"""A trial on nodes that a hardware file names as slow is marked."""

import dataclasses

from oppa import catalog
from oppa.problem.cluster import HardwareFile
from oppa.report.study import on_slow_nodes, row, slow_node_facts, slow_nodes_of
from tests.report.conftest import DEFAULT
from tests.tuning.conftest import trial_of

SLOW = ("n4",)


def test_a_trial_on_a_slow_node_is_marked() -> None:
    alike, slow = (trial_of(number, DEFAULT, 1.0, hosts=hosts) for number, hosts in ((1, ("n1", "n2")), (2, ("n1", "n4"))))
    assert on_slow_nodes(alike, SLOW) == "" and row(alike, SLOW)[2] == "completed"
    assert row(slow, SLOW)[2] == "completed, slow node n4"
    assert slow_node_facts([alike, slow], SLOW) == [("on slow nodes", "trial 2: n4")]
    assert slow_node_facts([alike, slow], ()) == []


def test_a_job_names_slow_nodes_by_its_hardware_file(problem) -> None:
    text = 'slow_nodes = ["n4"]\n' + (catalog.root() / "priors/hardware/CPU.toml").read_text()
    cluster = dataclasses.replace(problem.cluster, hardware=HardwareFile(name="mine", text=text))
    assert slow_nodes_of(dataclasses.replace(problem, cluster=cluster)) == SLOW
    assert slow_nodes_of(problem) == ()
