"""An expression computes as Python does, whatever the numbers: nothing wraps or is rounded, and what cannot be computed is an error."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppa.errors import SpaceError
from oppa.problem.expressions import LONGEST, ValueKind, parse

INT64 = 2**63
KINDS = {"dp": ValueKind.NUMBER, "tp": ValueKind.NUMBER, "mb": ValueKind.NUMBER}
large = st.one_of(
    st.integers(-3, 3), st.sampled_from([2**31, 2**32 - 1, 2**53 + 1, INT64 - 1, -INT64, -INT64 + 1]), st.integers(-INT64, INT64 - 1)
)
numbers = st.recursive(
    st.sampled_from(["dp", "tp", "2", "9223372036854775807", "18446744073709551616"]),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner), st.builds("-{}".format, inner)
    ),
    max_leaves=8,
)
truths = st.builds("{} {} {}".format, numbers, st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), numbers).filter(
    lambda text: len(text) <= LONGEST
)


@given(truths, st.lists(st.tuples(large, large), min_size=1, max_size=5))
def test_large_numbers_are_python_s(text: str, rows: list[tuple[int, int]]) -> None:
    columns = {name: np.array(column, np.int64) for name, column in zip(("dp", "tp"), zip(*rows, strict=True), strict=True)}
    try:
        expected = [bool(eval(text, {}, {"dp": dp, "tp": tp})) for dp, tp in rows]
    except ZeroDivisionError:
        with pytest.raises(SpaceError, match="cannot be computed"):
            parse(text, KINDS)(columns)
    else:
        assert np.broadcast_to(parse(text, KINDS)(columns), len(rows)).tolist() == expected


@pytest.mark.parametrize(
    "text",
    [
        "dp * 9223372036854775807 > 0",
        "dp * 4611686018427387904 * 2 > 0",
        "dp + 9223372036854775807 > 9223372036854775807",
        "-dp - 9223372036854775807 - 1 < 0",
        "dp * 9999999999999999999999 % 3 == 0",
        "dp // 9999999999999999999999 == 0",
        "dp != 9999999999999999999999",
    ],
)
def test_no_candidate_is_lost_to_an_overflow(text: str) -> None:
    assert np.all(parse(text, KINDS)({"dp": np.arange(1, 21)}))


@given(st.integers(-INT64, INT64 - 1), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["==", "<", ">="]))
def test_a_whole_number_and_a_float_are_compared_exactly(dp: int, mb: float, sign: str) -> None:
    found = parse(f"dp {sign} mb", KINDS)({"dp": np.array([dp]), "mb": np.array([mb])})
    assert found.tolist() == [eval(f"{dp} {sign} {mb!r}")]


@pytest.mark.parametrize("text", ["dp // tp == 0", "dp % tp == 0", "mb // tp == 0", "dp % (tp * 9223372036854775807) == 0", "dp // 0 == 1"])
@pytest.mark.parametrize("dp", [1, np.array([1, 2])])
def test_a_division_by_zero_is_named(text: str, dp: object) -> None:
    with pytest.raises(SpaceError, match="cannot be computed") as raised:
        parse(text, KINDS)({"dp": dp, "tp": np.array([1, 0]) if isinstance(dp, np.ndarray) else 0, "mb": 1.5})
    assert "no divisor can be 0" in raised.value.hint


@pytest.mark.parametrize("value", [np.array([1e308, 1.0]), 1e308])
def test_a_float_that_is_not_finite_is_named(value: object) -> None:
    with pytest.raises(SpaceError, match="cannot be computed"):
        parse("mb * " + "9" * 250 + " > 0", KINDS)({"mb": value})


@pytest.mark.parametrize(
    "text",
    [
        *("dp ** 999999999 == 1", "dp << 999999999 == 1", "dp >> 1 == 1", "dp / 2 == 1", "dp > 1e999", "dp == 1j", "~dp == 1", "+dp == 1"),
        *(
            "(" * 140 + "dp" + ")" * 140,
            "not " * 70 + "dp",
            "dp and " * 40 + "dp",
            "-" * (LONGEST - 2) + "dp",
            "dp == " * 50,
            "dp" * 10_000,
        ),
        *("dp == '\ud800'", "dp == '\x1b[2J", "\0", "", "\n", "\\", "dp #", "ｄｐ ==", "f'{dp}'", "lambda: dp", "*dp", "dp; tp", "dp = 1"),
    ],
)
def test_what_is_no_truth_is_refused(text: str) -> None:
    with pytest.raises(SpaceError) as raised:
        parse(text, KINDS)
    assert raised.value.hint
