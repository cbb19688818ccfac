"""The example of a slow link: the prior alone knows which layout is fastest on which hosts (measured: results/slow-link)."""

import json
from pathlib import Path

import pytest

from oppa.cost.beliefs import beliefs_of_job
from oppa.cost.facts import workload_of
from oppa.cost.prediction import predict
from oppa.problem.allocation import NETLAB
from oppa.problem.job import load_job

EXAMPLE = Path(__file__).parents[2] / "examples" / "slow_link.toml"
PLAIN, PIPELINED = "dp4_tp1_pp1_z0_mbs1", "dp2_tp1_pp2_z0_mbs1"


@pytest.fixture
def ranked(monkeypatch):
    """The configurations, the fastest first, as the prior has them on so many hosts."""

    def rank(hosts, ranks_per_host):
        given = {
            "hosts": [{"address": f"10.77.0.{host}", "namespace": "/"} for host in range(1, hosts + 1)],
            "bandwidth_bytes_per_s": 25e6,
            "latency_s": 1e-3,
            "ranks_per_host": ranks_per_host,
            "cpus_per_rank": 0.5,
        }
        monkeypatch.setenv(NETLAB, json.dumps(given))
        problem = load_job(EXAMPLE)
        candidates = problem.candidates()
        predicted = predict(workload_of(problem, candidates), *beliefs_of_job(problem))
        return [candidates.configuration(row) for row in predicted["predicted_step_time_s"].argsort()]

    return rank


def test_on_one_host_plain_data_parallelism_is_predicted_fastest(ranked):
    order = ranked(1, 4)
    assert (order[0].dp, order[0].pp) == (4, 1)
    names = [each.id for each in order]
    assert names.index(PLAIN) < names.index(PIPELINED)


def test_over_a_slow_link_a_pipeline_between_the_hosts_is(ranked):
    order = ranked(2, 2)
    assert (order[0].dp, order[0].pp) == (2, 2)
    names = [each.id for each in order]
    assert names.index(PIPELINED) < names.index(PLAIN)
