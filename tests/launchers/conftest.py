"""Start the launchers that trials run on, as they really are."""

import pytest

from tests.launchers.ray_cluster import RayCluster, ray_lacking
from tests.launchers.slurm_cluster import SlurmCluster, slurm_lacking


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """A Slurm of two nodes."""
    if lacking := slurm_lacking():
        pytest.skip(f"NOT TESTED on a real Slurm: {lacking}")
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def ray_cluster():
    """A Ray cluster of three nodes; this process has its token."""
    if lacking := ray_lacking():
        pytest.skip(f"NOT TESTED on a real Ray cluster: {lacking}")
    with RayCluster() as cluster, pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        yield cluster


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what runs on a real Slurm or a Ray cluster, before marks are selected by."""
    for item in items:
        if {"slurm", "ray_cluster"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.environment)


@pytest.fixture(autouse=True)
def _free_nodes(request):
    """Cancel the jobs that a test submits when it ends; earlier ones stay."""
    slurm = request.getfixturevalue("slurm") if "slurm" in request.fixturenames else None
    before = slurm.jobs() if slurm else set()
    yield
    if slurm:
        slurm.cancel(*slurm.jobs() - before)
