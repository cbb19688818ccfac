"""The law that predicts step times on other numbers of devices, and its error."""

import math

import pytest

from oppa.errors import MeasurementError
from oppa.table.scaling_law import LARGEST, ScalingLaw


def law(devices: int, a: float = 8.0, b: float = 0.5, c: float = 0.0) -> float:
    return a / devices + b + c * math.log2(devices)


@pytest.mark.parametrize(("sizes", "c"), [((1, 2), 0.0), ((1, 2, 8), 0.0), ((1, 2, 4, 8), 0.1), ((2, 4, 16, 64), 0.1)])
def test_times_that_follow_the_law_are_predicted_exactly(sizes: tuple[int, ...], c: float) -> None:
    found = ScalingLaw.fit({devices: law(devices, c=c) for devices in sizes})
    assert [found.step_s(devices) for devices in (3, 32, 100)] == pytest.approx([law(devices, c=c) for devices in (3, 32, 100)])


def test_the_error_is_that_of_sizes_that_were_left_out() -> None:
    exact = ScalingLaw.fit({devices: law(devices) for devices in (1, 2, 4, 8, 16)})
    assert exact.log_stddev == pytest.approx(0, abs=1e-6)
    slow = ScalingLaw.fit({devices: law(devices) * (1.3 if devices == 8 else 1) for devices in (1, 2, 4, 8, 16)})
    assert 0.1 < slow.log_stddev < 0.5


@pytest.mark.parametrize("planted", [(0.1, 0.0, 0.005), (0.1, 0.005, 0.002), (8.0, 0.5, 0.0), (1.0, 0.0, 0.0)])
@pytest.mark.parametrize("sizes", [(1, 2), (1, 4, 8), (1, 2, 4, 8), (8, 64), (2, 6, 20, 64)])
def test_the_truth_lies_within_the_stated_error_at_any_distance(sizes: tuple[int, ...], planted: tuple[float, float, float]) -> None:
    found = ScalingLaw.fit({devices: law(devices, *planted) for devices in sizes}, dict.fromkeys(sizes, 0.005))
    for devices in (1, 3, 16, 64, 1024):
        assert abs(math.log(found.step_s(devices) / law(devices, *planted))) <= found.log_error(devices) + 1e-6


def test_the_error_grows_outside_the_measured_range() -> None:
    few = ScalingLaw.fit({devices: law(devices, 0.1, 0.0, 0.005) for devices in (1, 2)})
    assert few.log_stddev < 0.1 < 1.0 < few.log_error(64), "11.4 ms are predicted, and 31.6 ms are true"
    many = ScalingLaw.fit({devices: law(devices) for devices in (2, 4, 8, 16)}, dict.fromkeys((2, 4, 8, 16), 0.01))
    errors = [many.log_error(devices) for devices in (16, 32, 64, 256)]
    assert errors == sorted(errors) and many.log_error(6) < 0.1 < errors[-1]


@pytest.mark.parametrize("unit", [1e-6, 1e4])
def test_the_error_is_that_of_any_unit_of_time(unit: float) -> None:
    one, other = (ScalingLaw.fit({1: 1.0 * scale, 2: 0.6 * scale, 4: 0.5 * scale}) for scale in (1.0, unit))
    assert one.log_error(64) == pytest.approx(other.log_error(64), rel=1e-5)


def test_devices_that_make_a_step_slower_are_predicted_to_be_no_faster() -> None:
    found = ScalingLaw.fit({1: 1.0, 2: 1.5})
    assert found.step_s(4) > 1.0 and found.log_stddev > 0.5


@pytest.mark.parametrize("times", [{}, {4: 1.0}, {2: 1.0, 4: 0.0}, {2: 1.0, 4: math.inf}])
def test_too_few_or_impossible_times_predict_nothing(times: dict[int, float]) -> None:
    with pytest.raises(MeasurementError, match="predict no others"):
        ScalingLaw.fit(times)


@pytest.mark.parametrize("times", [{1: 0.5, 2: 1.0, 4: 2.0, 8: 3.0, 16: 4.0}, {1: 1.0, 2: 1.2, 4: 2.4, 8: 3.6, 16: 4.8}])
@pytest.mark.parametrize("noise", [0.0, 0.1, 5.0])
def test_times_that_grow_with_devices_have_a_law_with_a_large_error(times, noise) -> None:
    law = ScalingLaw.fit(times, dict.fromkeys(times, noise))
    assert all(law.step_s(devices) > 0 and 0 < law.log_error(devices) <= LARGEST for devices in (1, 3, 64))
