"""An expression is allowed where Python's own `eval` agrees; everything else is refused with its place."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppa.errors import SpaceError
from oppa.problem.expressions import LONGEST, ValueKind, parse

VALUES = {"pp": 4, "tp": 2, "layers": 24, "schedule": "1f1b", "overlap_p2p": True}
KINDS = {name: ValueKind.of(value) for name, value in VALUES.items()}

numbers = st.recursive(
    st.sampled_from(["pp", "tp", "layers", "1", "7"]),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner),
        st.builds("({} {} {})".format, inner, st.sampled_from(["//", "%"]), st.sampled_from(["2", "3"])),
        st.builds("-{}".format, inner),
    ),
    max_leaves=6,
)
comparisons = st.one_of(
    st.builds("{} {} {} {} {}".format, numbers, st.sampled_from(["<", "<=", "=="]), numbers, st.sampled_from([">", "!="]), numbers),
    st.builds("{} {} [{}, 4]".format, numbers, st.sampled_from(["in", "not in"]), numbers),
    st.sampled_from(["schedule == 'gpipe'", "schedule not in ['gpipe', '1f1b']", "overlap_p2p", "overlap_p2p != (pp > 2)"]),
)
truths = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner), st.builds("(not {})".format, inner)
    ),
    max_leaves=5,
).filter(lambda text: len(text) <= LONGEST)


@given(truths, st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.booleans()), min_size=1, max_size=5))
def test_a_column_is_python_s_answer_row_by_row(text: str, rows: list[tuple[int, int, bool]]) -> None:
    names = ("pp", "tp", "overlap_p2p")
    expected = [bool(eval(text, {}, {**VALUES, **dict(zip(names, row, strict=True))})) for row in rows]
    columns = {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    found = np.broadcast_to(parse(text, KINDS)({**VALUES, **columns}), len(rows))
    assert found.tolist() == expected


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true') == 0",
        "pp.__class__ == pp",
        "(lambda: 1)() == 1",
        "[x for x in [1]] == [1]",
        "layers[0] == 1",
        "pp ** 9 == 1",
        "pp / 2 == 1",
        "(pp := 3) == 3",
        "pp if tp else layers",
        "f'{pp}' == ''",
        "pp == 1.5",
        "pp == None",
        "pp is 1",
        "pp in layers",
        "pp in []",
        "pp == True",
        "~pp == 1",
        "pp << 2 == 1",
        "{1: 2} == {1: 2}",
        "b'x' == b'x'",
        "await_ == 1",
    ],
)
def test_nothing_else_is_allowed(text: str) -> None:
    with pytest.raises(SpaceError, match="at column"):
        parse(text, KINDS)


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("layer % pp == 0", "`layer` at column 1 is not a known name", "did you mean `layers`?"),
        ("layers % (pp", "'(' was never closed at column 10", "an expression has names"),
        ("pp == ", "at column", "an expression has names"),
        ("pp and tp", "`pp` at column 1 is a number, but true or false is required", "an expression has names"),
        ("schedule == 1", "`1` at column 13 is a number, but a text is required", "an expression has names"),
        ("1 < schedule", "`schedule` at column 5 is a text, but a number is required", "an expression has names"),
        ("schedule < 'x'", "`schedule` at column 1 is a text and has no order", "compare it by == or !="),
        ("pp + 1", "`pp + 1` at column 1 is a number, but true or false is required", "an expression has names"),
        ("stages(pp) == 1", "`pp` at column 8 is a number, but a text is required", "an expression has names"),
        ("len(schedule) == 1", "`len(schedule)` at column 1 is not allowed", "an expression has names"),
        ("pp == 1 and " * 30 + "pp == 1", "characters is too long", f"at most {LONGEST}"),
        ("pp\x00 == 1", "is not an expression", "an expression has names"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, problem: str, hint: str) -> None:
    with pytest.raises(SpaceError) as raised:
        parse(text, KINDS)
    assert problem in raised.value.message
    assert hint in raised.value.hint


@pytest.mark.parametrize("pp", [1, np.array([2, 1])])
def test_division_by_zero_is_named(pp: object) -> None:
    expression = parse("pp == 1 or layers % (pp - 1) == 0", KINDS)
    with np.errstate(divide="raise"), pytest.raises(SpaceError, match=r"cannot be computed: .* by zero"):
        expression({**VALUES, "pp": pp})


def test_the_deepest_expression_can_be_computed() -> None:
    assert parse("-" * (LONGEST - 10) + "pp == pp", KINDS)(VALUES)


def test_an_expression_knows_its_names() -> None:
    assert parse("layers % (pp * tp) == 0", KINDS).names == {"layers", "pp", "tp"}
