"""A profile of a run's first steps is what was measured, and a run with a searched order switches to it as it trains."""

import contextlib
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from oppa.errors import InputError
from oppa.pipeline.from_configuration import schedule_of
from oppa.pipeline.profile import PipelineProfile
from oppa.pipeline.registry import build_schedule
from oppa.pipeline.stored_schedules import store
from oppa.pipeline.torch_csv import to_csv
from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration
from oppa.problem.training import RunOptions, Training
from oppa.training.data.sources import source_of
from oppa.training.parallel.mesh import open_mesh
from oppa.training.replica import Replica
from oppa.training.run.attempt import Attempt
from oppa.training.run.run_folder import SCALES, RunSpec
from oppa.training.run.schedule_search_process import FOUND, PROFILE
from oppa.training.run.step import Directive, TrainingStep
from oppa.training.run.step_profiling import StepProfiling
from oppa.training.run.training_run import open_run
from oppa.trials.trial_folder import TrialSpec
from tests.training.families import TINY, configured
from tests.training.full_disk import full
from tests.training.runs import Heard, Runs, attempt, events, losses, steps_of

STEPS = 2
LAYOUTS = [configured(dp=2, pp=2), configured(dp=4, micro_batch=1), configured(dp=2, zero_stage=3)]


def spec_of(configuration: Configuration) -> TrialSpec:
    cluster = Cluster(devices_per_host=1, memory_limit_bytes=4 << 30)
    return TrialSpec(study="s", trial=0, configuration=configuration, stated_model=TINY, cluster=cluster, training=Training(), steps=1)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[PipelineProfile, list[float], list[float]]:
    """One process's profile, and its losses with a recorder and without."""
    folder = tmp_path_factory.mktemp("meet")
    spec = spec_of(configured(global_batch=8, micro_batch=2))
    with open_mesh(spec.configuration, spec.cluster, rank=0, world=1, rendezvous=f"file://{folder}/rendezvous") as mesh:
        found = []
        for recorded in (True, False):
            replica = Replica(spec, mesh)
            profiling = StepProfiling(replica, spec, mesh, schedule_of(spec.configuration)) if recorded else None
            seen = []
            for step in range(STEPS):
                loss = replica.step(source_of(spec).batch(step, range(8)))
                assert loss is not None
                seen.append(float(loss))
                if profiling:
                    profiling.took(1.0)
            found.append(seen)
            if profiling:
                profile = profiling.profile()
                assert not any(module._forward_hooks or module._forward_pre_hooks for each in replica.stages for module in each.modules())
            del replica
    return profile, *found


def test_all_parts_are_seen(alone: tuple[PipelineProfile, list[float], list[float]]) -> None:
    profile, _, _ = alone
    assert profile.layers == TINY.layers and all(part.forward_s > 0 and part.backward_s > 0 for part in profile.parts)
    layers = profile.parts[1:-1]
    assert len({part.weight_bytes for part in layers}) == 1 and all(part.optimizer_bytes == 2 * part.weight_bytes for part in profile.parts)
    per_step_s = 4 * sum(part.forward_s + part.backward_s for part in profile.parts)
    assert 0.5 * profile.passes_s < per_step_s <= profile.passes_s * 1.0001
    assert profile.between_s == pytest.approx((profile.passes_s - per_step_s) / 8, abs=1e-4)


def test_recording_changes_no_bit(alone: tuple[PipelineProfile, list[float], list[float]]) -> None:
    _, recorded, free = alone
    assert recorded == free


def test_a_profile_begins_again_at_another_batch_size(tmp_path: Path) -> None:
    here, there = configured(micro_batch=1), configured(global_batch=4, micro_batch=4)
    options = RunOptions(samples=96, statistics_every=0, profile_steps=1)
    with open_run(spec_of(here), options, rank=0, world=1, rendezvous=f"file://{tmp_path}/rendezvous") as run:
        profiles = [run.step().profile]
        run.change(there)
        profiles += [run.step().profile for _ in range(3)]
    assert [profile and profile.micro_batch for profile in profiles] == [None, None, 4, None]


class UntilReordered(Heard):
    """Asks to stop some steps after the order was changed."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self._looked_at = folder, 0

    def stop_requested(self) -> bool:
        if self._stop_behind == float("inf") and self.steps > self._looked_at:
            self._looked_at = self.steps
            if events(self._folder, "reordered"):
                self._stop_behind = self.steps + 5
        return super().stop_requested()


@pytest.mark.slow
def test_a_full_disk_costs_a_run_its_profile_alone(made: Runs) -> None:
    folder = made.new(configured(), samples=48, profile_steps=1)
    with contextlib.ExitStack() as disk:

        def on_step(step: TrainingStep) -> None:
            if step.number == 1:
                disk.enter_context(full(1))
            if step.number == 2:
                disk.close()

        attempt(folder, on_step)
    assert len(steps_of(folder)) == 6 and not events(folder, "profiled") and not (folder / PROFILE).exists()


@pytest.mark.slow
def test_a_searched_run_begins_with_a_micro_batch_at_a_time_and_goes_over_to_a_better_order(made: Runs) -> None:
    spell = {"rank": 0, "step": 12, "deed": "await", "file": FOUND}  # so that no ranks compete with the search
    folder = made.new(configured(pp=4, micro_batch=1, schedule="search"), samples=8 * 1000, profile_steps=2, spell=spell)
    assert made.train(folder, UntilReordered(folder)).ending.value == "stopped"
    profiled, reordered = events(folder, "profiled", "reordered")
    steps = steps_of(folder)
    assert profiled["step"] == 2 * (1 + 2) and profiled["step"] < reordered["step"] < len(steps)
    assert reordered["step_s"] < reordered["from_step_s"] and len((folder / "order.csv").read_text().splitlines()) == 4
    profile = PipelineProfile.from_dict(json.loads((folder / "profile.json").read_text()))
    late = profile.parts[2:-1]  # not on the first stage, whose backward pass is never split
    assert all(part.input_s and part.weight_s and part.for_weights_bytes and part.held_bytes for part in late)
    other = made.trained(configured(pp=1, micro_batch=1), samples=8 * len(steps), profile_steps=0)
    assert losses(steps) == pytest.approx(losses(other), rel=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "configuration",
    [
        pytest.param(configured(dp=2, pp=2), marks=pytest.mark.nightly),
        pytest.param(configured(dp=4, micro_batch=1), marks=pytest.mark.nightly),
        pytest.param(configured(dp=2, zero_stage=3), marks=pytest.mark.nightly),
        configured(pp=2, model_chunks=2, schedule="interleaved", stage_layout="E|t*4||L"),
    ],
    ids=lambda c: c.id,
)
def test_runs_are_profiled_in_every_layout(configuration: Configuration, made: Runs) -> None:
    folder = made.new(configuration)
    assert made.train(folder).ending.value == "finished"
    profile = PipelineProfile.from_dict(json.loads((folder / "profile.json").read_text()))
    assert (profile.dp, profile.pp) == (configuration.dp, configuration.pp)
    assert all(part.forward_s > 0 and part.backward_s > 0 and part.weight_bytes > 0 for part in profile.parts)
    held = {round(part.held_bytes) for part in profile.parts[1:-1]}
    assert all(size > 0 for size in held)
    without = made.trained(configuration, profile_steps=0)
    assert losses(steps_of(folder)) == losses(without)


SEARCHED = configured(pp=2, micro_batch=1, schedule="search")


def grown(folder: Path, configuration: Configuration) -> None:
    """The run goes on in another configuration, on as many devices as that has."""
    run = RunSpec.read(folder)
    cluster = dataclasses.replace(run.problem.cluster, devices_per_host=configuration.devices)
    dataclasses.replace(run, configuration=configuration, problem=dataclasses.replace(run.problem, cluster=cluster)).write(folder)


@pytest.mark.slow
@pytest.mark.parametrize("in_table", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_a_job_in_a_searched_order_grows_into_the_one_that_is_stored(in_table: bool, made: Runs) -> None:
    larger = dataclasses.replace(SEARCHED, pp=4)
    folder = made.new(SEARCHED, profile_steps=2, samples=48)
    store(folder / SCALES if in_table else folder, larger, build_schedule("zb-h2", ranks=4, micro_batches=8))
    assert made.train(folder, Heard(stop_behind=2)).ending.value == "stopped"
    assert not events(folder, "order_taken_up")
    grown(folder, larger)
    before = len(steps_of(folder))
    assert made.train(folder).ending.value == "finished"
    (taken,) = events(folder, "order_taken_up")
    assert taken["step"] == before and not [line for line in events(folder, "profiled") if line["step"] > before]
    assert losses(steps_of(folder)) == losses(made.trained(configured(pp=1, micro_batch=1), samples=48, profile_steps=0))


@pytest.mark.slow
def test_a_job_in_a_searched_order_searches_again_where_none_is_stored(made: Runs) -> None:
    """It searches in its own process, too, where pp changes with dp."""
    folder = made.new(dataclasses.replace(SEARCHED, dp=2), (48, dataclasses.replace(SEARCHED, pp=4)), samples=96, profile_steps=1)
    assert made.train(folder).ending.value == "finished"
    first, second = (line["step"] for line in events(folder, "profiled"))
    (changed,) = events(folder, "changed")
    assert first < changed["step"] < second == changed["step"] + 4
    profile = PipelineProfile.from_dict(json.loads((folder / "profile.json").read_text()))
    assert (profile.dp, profile.pp) == (1, 4)


@pytest.mark.slow
def test_a_run_searches_again_at_another_batch_size(made: Runs) -> None:
    """As many micro-batches as before need more memory if they are larger."""
    larger = dataclasses.replace(SEARCHED, global_batch=16, micro_batch=2)
    folder = made.new(SEARCHED, (16, larger), samples=144, profile_steps=1)
    assert made.train(folder).ending.value == "finished"
    (changed,) = events(folder, "changed")
    (profiled,) = events(folder, "profiled")
    assert profiled["step"] == changed["step"] + 4
    assert json.loads((folder / "profile.json").read_text())["micro_batch"] == 2


def test_a_schedule_that_was_found_is_used_though_a_change_of_the_same_step_is_refused(made: Runs) -> None:
    folder, schedules = made.new(SEARCHED), list[str]()

    def refuse(*_: object) -> None:
        raise InputError("it cannot run", hint="keep it")

    run = SimpleNamespace(
        configuration=SEARCHED, mesh=SimpleNamespace(rank=0), set_schedule=lambda found: schedules.append(to_csv(found)), change=refuse
    )
    attempt = Attempt(folder, stop_requested=lambda: False, on_step=lambda _: None)
    passes = to_csv(build_schedule("zb-h1", ranks=2, micro_batches=8))
    attempt._follow(Directive(configuration=dataclasses.replace(SEARCHED, micro_batch=3), passes=passes), run)  # type: ignore[arg-type]
    assert schedules == [passes]


@pytest.mark.slow
def test_a_stored_order_is_the_run_s_first_and_is_taken_up_again_after_a_change(made: Runs) -> None:
    here, there = dataclasses.replace(SEARCHED, dp=2), dataclasses.replace(SEARCHED, pp=4)
    folder = made.new(here, (32, there), (48, here), samples=64, profile_steps=2)
    for each, passes in (
        (here, build_schedule("gpipe", ranks=2, micro_batches=4)),
        (there, build_schedule("zb-h1", ranks=4, micro_batches=8)),
    ):
        store(folder, each, passes)
    assert made.train(folder).ending.value == "finished"
    assert [line["step"] for line in events(folder, "order_taken_up")] == [0, 4, 6]
    (profiled,) = events(folder, "profiled")
    assert profiled["step"] == 3  # in that order, without a micro-batch at a time
    assert not (folder / "order.json").exists()


@pytest.mark.slow
def test_a_damaged_order_is_not_gone_in(made: Runs) -> None:
    folder = made.new(SEARCHED, profile_steps=1, samples=48)
    store(folder, SEARCHED, build_schedule("gpipe", ranks=2, micro_batches=8))
    (path,) = (folder / "orders").iterdir()
    path.write_text("0F0\n1F0\n")
    assert made.train(folder).ending.value == "finished"
    assert not events(folder, "order_taken_up") and events(folder, "profiled")
