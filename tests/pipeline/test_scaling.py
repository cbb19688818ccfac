"""How a job scales, and what a scale table leaves out (FlexTrain, section 4.4.4)."""

import dataclasses

import pytest

from oppa.pipeline.prediction import Prediction
from oppa.pipeline.scaling import Candidate, Job, candidates, fastest, scale_table
from tests.pipeline.test_prediction import profile

JOB = Job(profile=profile(), global_batch=8)


def way(step_s: float, modelled_s: float, **values: object) -> Candidate:
    prediction = Prediction(step_s=step_s, peak_bytes=1.0, passes_s=step_s)
    layout = {"dp": 1, "pp": 1, "chunks": 1, "schedule": "1f1b", "stage_layout": "even"}
    return Candidate(**{**layout, "prediction": prediction, "modelled_s": modelled_s, **values})  # type: ignore[arg-type]


def test_all_ways_are_looked_at_that_can_be_run() -> None:
    found = {(each.dp, each.pp) for each in candidates(JOB, 8, replicas=None, schedules=["1f1b"])}
    assert found == {(1, 8), (2, 4), (4, 2), (8, 1)}
    assert {(each.dp, each.pp) for each in candidates(JOB, 8, replicas=[1], schedules=["1f1b"])} == {(1, 8)}
    assert not list(candidates(JOB, 16, replicas=[1], schedules=["1f1b"]))  # more stages than layers
    assert {(each.dp, each.pp) for each in candidates(JOB, 6, replicas=None, schedules=["1f1b"])} == {
        (1, 6),
        (2, 3),
    }  # 3 and 6 do not divide
    halved = dataclasses.replace(JOB, tp=2)
    assert {(each.dp, each.pp) for each in candidates(halved, 8, replicas=None, schedules=["1f1b"])} == {(1, 4), (2, 2), (4, 1)}
    assert {each.chunks for each in candidates(JOB, 2, replicas=[1], schedules=["interleaved"])} == {2, 3, 4}


def test_stages_are_balanced_by_measured_costs() -> None:
    slow = dataclasses.replace(profile().parts[-1], forward_s=2.0, backward_s=4.0)
    job = dataclasses.replace(JOB, profile=dataclasses.replace(profile(), parts=(*profile().parts[:-1], slow)))
    evenly, by_cost = candidates(job, 4, replicas=[1], schedules=["1f1b"])
    assert (evenly.stage_layout, by_cost.stage_layout) == ("even", "Ett|tt|t*3|tL")
    assert by_cost.prediction.step_s < evenly.prediction.step_s
    assert fastest(job, [evenly, by_cost]) is by_cost


def test_more_stages_than_layers_leave_some_without() -> None:
    job = dataclasses.replace(JOB, profile=profile(6))
    found = list(candidates(job, 4, replicas=[1], schedules=["interleaved"]))
    assert {each.chunks for each in found} == {2} and found[0].stage_layout == "even"


def test_the_fastest_that_fits_is_taken() -> None:
    ways = list(candidates(JOB, 4, replicas=None, schedules=["1f1b", "gpipe", "interleaved"]))
    best = fastest(JOB, ways)
    assert best is not None and best.prediction.step_s == min(each.prediction.step_s for each in ways)
    tight = dataclasses.replace(JOB, limit_bytes=best.prediction.peak_bytes - 1)
    other = fastest(tight, ways)
    assert other is not None and other.prediction.peak_bytes < best.prediction.peak_bytes
    assert fastest(dataclasses.replace(JOB, limit_bytes=1.0), ways) is None


@pytest.mark.parametrize(
    ("steps", "reasons"),
    [
        ([(8, 8), (4, 4), (2, 2)], ["", "", ""]),
        ([(8, 8), (4, 4), (3.9, 3.9)], ["", "", "hardly faster than 2.00"]),
        ([(8, 8), (4, 4), (3.5, 4.5)], ["", "", "predictions disagree on the trend"]),
        ([(8, 8), (4, 6), (2, 3)], ["", "predictions differ: 2.00 and 1.33", "predictions differ: 4.00 and 2.67"]),
        ([(8, 8), (4, 4), (5, 5), (3.9, 3.9), (2, 2)], ["", "", "hardly faster than 2.00", "hardly faster than 2.00", ""]),
    ],
)
def test_numbers_of_devices_are_left_out(steps: list[tuple[float, float]], reasons: list[str]) -> None:
    best = [(2**number, way(*each)) for number, each in enumerate(steps)]
    found = scale_table(JOB, best[::-1], best[0][1])
    assert [entry.left_out for entry in found] == reasons and [entry.devices for entry in found] == [2**n for n in range(len(steps))]
