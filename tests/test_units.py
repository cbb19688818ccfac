"""Every unit of a quantity is what its name states, and nonsense is refused with the legal units."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppa import units
from oppa.errors import InputError


@pytest.mark.parametrize(
    ("text", "count"), [("80 GiB", 80 * 1024**3), ("1.5 MiB", 1572864), ("64GB", 64 * 10**9), ("7 b", 7), ("2e3 kB", 2_000_000)]
)
def test_sizes_are_in_bytes(text: str, count: int) -> None:
    assert units.parse_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "seconds"), [("3 us", 3e-6), ("1ms", 1e-3), ("85 ms", 0.085), ("10 min", 600), ("1.5 h", 5400), ("2d", 172800)]
)
def test_durations_are_in_seconds(text: str, seconds: float) -> None:
    assert units.parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"), [("25 GB/s", 25e9), ("200 Mbit", 25e6), ("200mbit", 25e6), ("25 MB/s", 25e6), ("1 GiB/s", 2**30), ("8 bit", 1)]
)
def test_bandwidths_are_in_bytes_per_second(text: str, bytes_per_s: float) -> None:
    assert units.parse_bandwidth(text) == pytest.approx(bytes_per_s)


@pytest.mark.parametrize("text", ["8 bit/s", "1.5 kbit/s", "200 Mbit/s", "12.5 Gbit/s"])
def test_a_printed_bandwidth_reads_back(text: str) -> None:
    assert units.format_bandwidth(units.parse_bandwidth(text.removesuffix("/s"))) == text


@pytest.mark.parametrize("text", ["", "80", "GiB", "80 gigabytes", "-1 GiB", "1 2 GiB", "nan GiB", "80 s", "80 GiB/s"])
def test_what_is_no_size_is_refused_with_the_units(text: str) -> None:
    with pytest.raises(InputError) as raised:
        units.parse_bytes(text)
    assert raised.value.message == f"`{text}` is not a size"
    assert "GiB" in raised.value.hint


@given(st.integers(min_value=0, max_value=2**50))
def test_a_printed_size_reads_back_to_three_digits(count: int) -> None:
    assert units.parse_bytes(units.format_bytes(count)) == pytest.approx(count, rel=0.006)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.085, "85 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (1.2, "1.2 s"),
        (99.4, "99.4 s"),
        (185, "3 min 05 s"),
        (7800, "2 h 10 min"),
        (119.6, "2 min 00 s"),
        (14.5 * 86400, "14 d 12 h"),
        (14 * 86400, "14 d"),
    ],
)
def test_durations_are_printed_for_people(seconds: float, text: str) -> None:
    assert units.format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(1_235_814_400, "1.24 B"), (350e6, "350 M"), (999_700, "1 M"), (12_000, "12 k"), (7, "7"), (2.5e12, "2.5 T")]
)
def test_counts_are_printed_for_people(count: float, text: str) -> None:
    assert units.format_count(count) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 trials"), (1, "1 trial"), (24, "24 trials")])
def test_a_noun_has_the_number_of_its_count(count: int, text: str) -> None:
    assert units.with_noun(count, "trial") == text
