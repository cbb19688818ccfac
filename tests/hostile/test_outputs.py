"""Whatever a program prints, its steps are read in bounded time and memory, or its trial fails with a cause in plain words."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.faults.inputs import outputs
from experiments.faults.law import judge
from oppa.problem.command_table import formats

steps, launch = outputs.programs()["steps"], outputs.programs()["launch"]
pieces = st.one_of(
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["step ", " ms", " it/s", "/", " [", "9" * 400, "1e400"]),
    st.text(max_size=8),
)


def read(pattern: str, *lines: str, better: str = "") -> list:
    """The steps of a program of two ranks that prints these lines, one a second."""
    counter = steps.StepCounter(ranks=2, now_s=0.0, better=better)
    found = [(text, re.search(pattern, text)) for text in lines]
    return [
        step
        for at_s, (text, match) in enumerate(found, start=1)
        for step in counter.read([steps.facts_of(text, match)] if match else [], float(at_s))
    ]


@pytest.mark.slow
@given(st.lists(st.lists(pieces, min_size=1, max_size=5).map("".join), max_size=8), st.sampled_from([*outputs.PATTERNS.values()]))
def test_any_text_makes_steps_that_took_time_or_is_named(odd: list[str], declared: tuple[str, str]) -> None:
    pattern, line = declared
    texts = [each for text in odd for each in (text, line.format(text))]
    for better in outputs.BETTER if "value" in pattern else ("",):
        try:
            for step in read(pattern, *texts, better=better):
                assert 0 < step.seconds < float("inf") and abs(step.memory_bytes or 0) < 2**63
        except ValueError as error:
            assert str(error).startswith("the program prints") and len(str(error)) < 300


@pytest.mark.parametrize(
    ("pattern", "lines", "better", "words"),
    [
        (r"(?P<done>\d+)/", ("0/9", "999999999999/9"), "", "which is 999999999999 more than the one before"),
        (r"step (?P<step>\d+)", ("step 1", f"step {10**15}"), "", f"the number {10**15}"),
        (r"step (?P<step>\S+)", (f"step {'9' * 5000}",), "", "no whole number"),
        (r"step (?P<step>\S+)", ("step 1.5",), "", "`1.5` as the number of a step"),
        (r"(?P<value>\S+)", ("fast",), "higher", "objectives must be positive"),
        (r"(?P<value>\S+)", ("-0.0",), "lower", "objectives must be positive"),
        (r"(?P<value>\S+)", ("nan",), "lower", "objectives must be positive"),
        (r"(?P<value>\S+)", ("5e-324",), "higher", "too large or too small"),
        (r"(?P<value>\S+)", ("3e14",), "higher", "state it in another unit"),
        (r"(?P<s>\S+)", ("1" + "0" * 400,), "", "must be positive"),
    ],
    ids=range(10),
)
def test_a_number_that_no_step_has_is_named(pattern: str, lines: tuple[str, ...], better: str, words: str) -> None:
    with pytest.raises(ValueError, match="the program prints") as raised:
        read(pattern, *lines, better=better)
    assert words in str(raised.value)


def test_a_loss_or_a_memory_that_is_no_number_is_none_and_a_loss_that_diverges_is_kept() -> None:
    found = read(r"(?P<loss>\S+) (?P<memory_gib>\S+)", "1.2.3 x", "nan inf", "1e400 -1e400", "1 1e308")
    assert [(str(step.loss), step.memory_bytes) for step in found] == [("None", None), ("nan", None), ("inf", None), ("1.0", 2**62)]


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=20), st.integers(1, 7))
def test_lines_are_the_same_however_they_come(chunks: list[bytes], size: int) -> None:
    whole = b"\n".join(chunks)
    cut = [whole[at : at + size] for at in range(0, len(whole), size)]
    one, many = launch.OutputLines(), launch.OutputLines()
    assert one.complete(whole) + one.complete(b"") == [line for each in cut for line in many.complete(each)] + many.complete(b"")


def test_a_line_without_an_end_is_not_kept() -> None:
    lines = launch.OutputLines()
    assert not any(lines.complete(b"x" * (1 << 16)) for _ in range(1_000)) and len(lines.rest) == launch.LONGEST_LINE
    assert [len(text) for text in lines.complete(b"x\ny\n")] == [launch.LONGEST_LINE, 1]


@pytest.mark.parametrize("name", formats())
@pytest.mark.timeout(20)
@given(text=st.sampled_from(["step 1 ", "1", "1,", "1.", "1e1", " ", "Epoch 1: ", "{'loss': '1", "1/1 [", "iteration 1/ "]))
def test_no_known_format_takes_long_on_a_long_line(name: str, text: str) -> None:
    line = (text * launch.LONGEST_LINE)[: launch.LONGEST_LINE // 2]
    re.search(formats()[name]["pattern"], line + "1" * (launch.LONGEST_LINE // 2))


@pytest.mark.slow
def test_hostile_outputs_are_read_or_refused() -> None:
    verdicts = [judge(case, outputs.read) for case in itertools.islice(outputs.cases(seed=0), 120)]
    assert [verdict for verdict in verdicts if verdict.answer not in ("accepted", "clear")] == []
    assert {verdict.answer for verdict in verdicts} == {"accepted", "clear"}


def test_a_bar_is_read_when_it_is_printed_and_not_with_the_next_one() -> None:
    lines, bar = launch.OutputLines(), "Train:  50%|##  | {}/12 [00:00<00:00, 49.9it/s, loss=0.5]"
    assert lines.complete(b"\r" + bar.format(0).encode()) == ["", bar.format(0)]
    assert lines.complete(b"\r" + bar.format(5).encode()[:30]) == [""], "it is not whole"
    assert lines.complete(bar.format(5).encode()[30:] + b"  \x1b[A") == [f"{bar.format(5)}  \x1b[A"]
    assert lines.complete(b"\nstep [1, 2]") == [""] and lines.complete(b"") == ["step [1, 2]"]
