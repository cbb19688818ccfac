"""Measure the time to a trial's first step on a node of a Ray cluster, against the local launcher on the same machine."""

import tempfile
from pathlib import Path

from experiments.timings.interleaved import compared
from experiments.timings.startup import RANKS, local_launcher, set_up, spec
from oppa import catalog
from oppa.launchers.provider import RAY, HostRequest, WaitingTuner, make_provider
from oppa.report.record import Section
from oppa.trials.runner import load_runner

LIMIT = 1.5
"""Largest ratio of start-ups that the launcher is to reach."""


def ray_startup(repeats: int) -> list[Section]:
    """Measure the seconds from the start of a trial to its first step, alternately for both launchers, whose processes are warm.

    Raises:
        EnvironmentLackingError: Ray is not installed, or this machine belongs to no cluster.
    """
    runner, provider = load_runner(catalog.find("runners", "torch")), make_provider(RAY)
    request = HostRequest(cluster=spec().cluster, options={"cpus_per_host": 1}, parallel=1)
    provider.require(request)
    with tempfile.TemporaryDirectory() as folder:
        tuner = WaitingTuner(folder=Path(folder), name="bench", grace_s=5.0, on_tick=lambda: None)
        with (
            provider.open(request, tuner) as backend,
            backend.launcher(runner, study="bench-ray", grace_s=5.0) as on_ray,
            local_launcher(runner) as here,
        ):
            ours, theirs = set_up(on_ray, Path(folder, "trials", "ray")), set_up(here, Path(folder, "trials", "local"))
            names = ("Ray, s", "local, s", "Ray / local")
            rows, ratio = compared(ours, theirs, repeats, names=names, by=lambda ray_s, local_s: ray_s / local_s)
    verdict = "within" if ratio <= LIMIT else "beyond"
    text = f"{RANKS} ranks, {repeats} pairs in turn: {ratio:.2f} times as long on Ray, {verdict} the limit of {LIMIT:g}."
    return [Section(title="Trial set-up on Ray", text=text, columns=("launcher", "median (min - max)"), rows=rows)]
