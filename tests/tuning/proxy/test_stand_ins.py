"""Every stand-in is legal, keeps what it must, and does as much work per step on each device as what it stands for."""

import numpy as np
import pytest

from oppa.errors import InputError
from oppa.problem.problem import Problem
from oppa.tuning.proxy.rung import Rung, cut, same_work_batch
from oppa.tuning.proxy.stand_ins import proxy_of

RUNGS = [(1, 12), (2, 12), (2, 6), (1, 3), (8, 4), (4, 1)]
KEPT = ("tp", "micro_batch", "zero_stage", "recompute")


def rung(job, hosts: int, layers: int) -> Rung:
    return Rung(hosts=hosts, layers=layers, global_batch=int(same_work_batch(job, hosts=hosts, layers=layers)))


def pairs(full, proxy):
    return [(full.configuration(row), proxy.candidates.configuration(at)) for row, at in enumerate(proxy.stand_in) if at >= 0]


@pytest.mark.parametrize(("hosts", "layers"), RUNGS)
def test_a_stand_in_satisfies_every_constraint_of_the_smaller_size(job, full, hosts, layers) -> None:
    smaller = cut(job, rung(job, hosts, layers))
    legal = set(smaller.candidates())
    assert {small for _, small in pairs(full, proxy_of(job, full, rung(job, hosts, layers)))} <= legal


@pytest.mark.parametrize(("hosts", "layers"), RUNGS)
def test_a_stand_in_keeps_all_but_replicas_and_stages(job, full, hosts, layers) -> None:
    for large, small in pairs(full, proxy_of(job, full, rung(job, hosts, layers))):
        kept = [name for name in KEPT if name != "zero_stage" or small.dp > 1]  # one replica shards nothing
        assert all(large[name] == small[name] for name in kept)
        assert small.pp in (large.pp, large.pp * layers / 12)


@pytest.mark.parametrize(("hosts", "layers"), RUNGS)
def test_each_device_does_the_same_work_per_step(job, full, hosts, layers) -> None:
    """Micro-batches times the layers of a stage."""
    for large, small in pairs(full, proxy_of(job, full, rung(job, hosts, layers))):
        assert large.num_microbatches * 12 * small.pp == small.num_microbatches * layers * large.pp


@pytest.mark.parametrize(("hosts", "layers"), [(2, 12), (2, 6), (1, 3)])
def test_a_stage_that_keeps_its_layers_keeps_its_micro_batches(job, full, hosts, layers) -> None:
    same = [pair for pair in pairs(full, proxy_of(job, full, rung(job, hosts, layers))) if 12 * pair[1].pp == layers * pair[0].pp]
    assert same and all(large.num_microbatches == small.num_microbatches for large, small in same)


@pytest.mark.parametrize(("hosts", "layers"), RUNGS)
def test_every_configuration_of_the_proxy_stands_for_one_at_least(job, full, hosts, layers) -> None:
    proxy = proxy_of(job, full, rung(job, hosts, layers))
    assert len(proxy.stand_in) == len(full)
    assert set(proxy.stand_in[proxy.matched]) == set(range(len(proxy.candidates)))


def test_at_its_own_size_each_configuration_stands_for_itself(job, full) -> None:
    proxy = proxy_of(job, full, Rung(hosts=8, layers=12, global_batch=512))
    assert (proxy.stand_in == np.arange(len(full))).all()
    assert list(proxy.candidates) == list(full)


def test_a_study_stores_the_smaller_size(job, full) -> None:
    proxy = proxy_of(job, full, rung(job, 2, 6))
    stored = Problem.from_dict(proxy.problem.to_dict())
    assert stored.fingerprint == proxy.problem.fingerprint
    assert list(stored.candidates()) == list(proxy.candidates)


def test_the_users_baseline_has_its_stand_in(make_job) -> None:
    job = make_job("baseline = {dp = 64, micro_batch = 8}\n")
    proxy = proxy_of(job, job.candidates(), rung(job, 2, 12))
    assert proxy.problem.baseline is not None
    assert (proxy.problem.baseline.dp, proxy.problem.baseline.micro_batch) == (16, 8)


def test_layers_must_divide(job, full) -> None:
    with pytest.raises(InputError, match="does not divide `layers = 12`"):
        proxy_of(job, full, Rung(hosts=2, layers=5, global_batch=512))


def test_a_size_without_a_legal_configuration_is_refused(job, full) -> None:
    with pytest.raises(InputError, match="no configuration of `job` has a stand-in on 1 hosts"):
        proxy_of(job, full, Rung(hosts=1, layers=12, global_batch=1))
