"""Optimizer steps, counted and timed from the lines that a program prints: on a clock of our own."""

import importlib.util
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppa import catalog
from oppa.problem.command_table import formats
from tests.runners.printed_lines import LIGHTNING, LINES, MEGATRON, TORCHTITAN, TRAINER

_spec = importlib.util.spec_from_file_location("command_steps", catalog.root() / "runners" / "command" / "steps.py")
steps = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(steps)


def facts(text, pattern):
    found = re.search(pattern, text)
    return [steps.facts_of(text, found)] if found else []


def timed(printed, pattern, *, per_step=1, ranks=2):
    """The steps of a program of so many ranks that printed these lines, each at its time; it was started at 0."""
    counter = steps.StepCounter(per_step=per_step, ranks=ranks, now_s=0.0)
    return [step for at_s, text in printed for step in counter.read(facts(text, pattern), at_s)]


def numbered(numbers, text="step {}", every_s=0.5):
    return [(every_s * (place + 1), text.format(number)) for place, number in enumerate(numbers)]


STEP = r"step (?P<step>\d+)"
BAR = r"(?P<done>\d+)/\d+ \["


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("first", [0, 1])
def test_every_format_counts_from_0_and_from_1(name, first):
    assert LINES.keys() == formats().keys()
    progress = "done" in formats()[name]["pattern"]
    numbers = range(first, first + 10 + (progress and first == 0))  # a bar's 0 is no step
    seen = timed(numbered(numbers, LINES[name]), formats()[name]["pattern"])
    assert len(seen) == 10 and {step.seconds for step in seen[1:]} == {0.5}


@given(st.integers(0, 5000), st.integers(1, 30))
def test_wherever_a_counter_starts_as_many_steps_are_counted_as_were_printed(first, count):
    assert len(timed(numbered(range(first, first + count)), STEP)) == count


@given(st.integers(1, 8), st.integers(1, 8), st.floats(0.01, 10), st.integers(2, 20))
def test_accumulation_changes_no_throughput(one, other, step_s, count):
    """Two configurations whose steps take as long, with other numbers of batches in each."""

    def seen(batches):
        printed = numbered(range(batches * count + 1), LIGHTNING, every_s=step_s / batches)
        return timed(printed, formats()["lightning"]["pattern"], per_step=batches)

    left, right = seen(one), seen(other)
    assert len(left) == len(right) == count
    assert [step.seconds for step in (*left, *right)] == pytest.approx([step_s] * 2 * count)


@given(st.integers(1, 8), st.floats(0.01, 10))
def test_a_rate_of_tokens_gives_the_same_step_with_any_number_of_batches(batches, step_s):
    counter = steps.StepCounter(per_step=batches, ranks=1, now_s=0.0, tokens=8000)
    line = facts(f"step 1, {8000 / step_s:.9f} tok/s", r"(?P<tokens_per_s>[0-9.]+) tok/s")
    assert [step.seconds for _ in range(2 * batches) for step in counter.read(line, 0.0)] == pytest.approx([step_s] * 2)


@given(st.integers(1, 6), st.integers(1, 7), st.integers(1, 4))
def test_a_bar_that_skips_batches_loses_no_time(per_step, every, count):
    """Only every few batches are printed: what is measured adds up to the time that passed."""
    batches = range(0, per_step * every * count + 1, every)
    seen = timed([(float(number), f"{number}/100 [") for number in batches], BAR, per_step=per_step)
    assert len(seen) == every * count and {round(step.seconds, 6) for step in seen} == {float(per_step)}


def test_steps_that_one_line_states_are_one_observation():
    lines = numbered([0, 10, 20], every_s=1.0)
    assert [step.averaged for step in timed(lines, STEP)] == [False, *[False, *[True] * 9] * 2]
    assert [step.averaged for step in timed(lines, STEP, per_step=5)] == [False, True] * 2
    assert not any(step.averaged for step in timed(numbered(range(5)), STEP))


def test_lines_that_come_at_once_are_one_observation_unless_they_state_their_times():
    def together(pattern):
        counter = steps.StepCounter(ranks=1, now_s=0.0)
        texts = [f"step {number} took {number + 1} ms" for number in range(3)]
        return [step.averaged for step in counter.read([each for text in texts for each in facts(text, pattern)], 1.0)]

    assert together(STEP) == [False, True, True]
    assert together(rf"{STEP} took (?P<ms>\d+) ms") == [False] * 3


def test_a_line_that_is_shown_again_is_no_step():
    assert len(timed(numbered([0, 0, 1, 1, 2, 2, 2]), STEP)) == 3
    assert len(timed(numbered([0, 0, 1, 1, 2, 2], "{}/9 ["), BAR)) == 2


def test_ranks_that_all_print_a_step_count_it_once():
    assert len(timed(numbered([0, 0, 1, 0, 1, 2, 2, 3, 2, 3]), STEP)) == 4
    assert len(timed(numbered([0, 0, 1, 1, 2, 1, 2, 3, 2, 4], "{}/9 ["), BAR)) == 4


# Epochs, however short, and ranks that print late

FIRST = st.sampled_from([0, 1, 7])
RANKS = st.integers(1, 8)


@given(FIRST, st.integers(1, 5), st.integers(9, 12), RANKS)
def test_each_step_of_each_epoch_is_counted(first, length, epochs, ranks):
    printed = numbered([*range(first, first + length)] * epochs)
    assert len(timed(printed, STEP, ranks=ranks)) == length * epochs


@given(st.booleans(), st.integers(1, 5), st.integers(3, 6), RANKS)
def test_each_batch_of_each_epoch_is_counted_in_a_bar(zero, length, epochs, ranks):
    length += not zero  # without its 0, a bar over one batch is a bar that is shown again
    bar = numbered([*range(not zero, length + 1)] * epochs, "{}/9 [")
    assert len(timed(bar, BAR, ranks=ranks)) == length * epochs


@given(FIRST, st.integers(2, 5), st.integers(3, 6), RANKS)
def test_ranks_that_all_print_count_as_one_in_each_epoch(first, length, epochs, ranks):
    numbers = [number for number in range(first, first + length) for _ in range(ranks)] * epochs
    assert len(timed(numbered(numbers), STEP, ranks=ranks)) == length * epochs


@st.composite
def interleaved(draw, *, ranks, lead, lengths):
    """The numbers of one rank, and what all ranks print: (rank, number); none is ahead of another by more than `lead` numbers."""
    numbers = [*range(draw(lengths))] * draw(st.integers(4, 6))
    printed, places = [], [0] * draw(ranks)
    while min(places) < len(numbers):
        ready = [rank for rank, place in enumerate(places) if place < len(numbers) and place - min(places) < lead]
        rank = draw(st.sampled_from(ready))
        printed.append((rank, numbers[places[rank]]))
        places[rank] += 1
    return numbers, printed


@given(interleaved(ranks=st.just(2), lead=2, lengths=st.integers(3, 6)))
def test_a_late_rank_without_a_prefix_adds_no_step(ranks):
    numbers, printed = ranks
    assert len(timed(numbered([number for _, number in printed]), STEP)) == len(numbers)


@pytest.mark.parametrize("prefix", ["[rank{}]: step {}", "[default{}]:step {}", "[default{0}]:[rank{0}]: step {1}"])
@given(ranks=interleaved(ranks=st.integers(1, 4), lead=4, lengths=st.integers(1, 6)))
def test_ranks_with_a_prefix_are_distinguished_in_epochs_of_any_length(prefix, ranks):
    numbers, printed = ranks
    lines = [(0.5 * place, prefix.format(*each)) for place, each in enumerate(printed, 1)]
    assert len(timed(lines, STEP, ranks=4)) == len(numbers)
    assert len(timed(lines, "step", ranks=4)) == len(numbers), "without a number, each line of a rank is a step"


def test_an_evaluation_of_composer_and_of_fairseq_is_no_step():
    assert not facts("[Eval batch=3/10] Eval on eval data", formats()["composer"]["pattern"])
    assert not facts("epoch 001 | valid on 'valid' subset | loss 8.2 | ppl 230 | num_updates 300", formats()["fairseq"]["pattern"])


def test_a_number_in_brackets_is_a_rank_only_where_torch_prints_it():
    assert len(timed([(float(epoch), f"[epoch{epoch}]: step 1") for epoch in range(1, 7)], STEP)) == 6


def test_three_late_ranks_that_look_like_short_epochs_add_few_steps():
    """The lines up to the first 2 are what one rank prints in epochs of two steps."""
    numbers = [0, 1, 0, 1, 0, 2, 1, 2, 3, 2, 3, 4, 3, 4, 5, 4, 5, 5]
    assert len(timed(numbered(numbers), STEP, ranks=3)) == 6 + 3


@pytest.mark.parametrize("numbers", [[1] * 12, [0, 1] * 6, [0, 1, 2] * 4])
def test_steps_that_were_held_keep_their_loss_and_the_time_that_passed(numbers):
    printed = [(float(place), f"step {number} loss {place}") for place, number in enumerate(numbers, 1)]
    seen = timed(printed, STEP + r" loss (?P<loss>\d+)")
    assert [step.loss for step in seen] == [*range(1, 13)]
    assert [step.seconds for step in seen] == [1.0] * 12


def test_batches_that_an_epoch_has_left_over_are_no_step():
    """Ten batches an epoch, four to a step: the optimizer's third step is over two batches, and of another size."""
    seen = timed(numbered([*range(11), *range(11)], "{}/10 ["), BAR, per_step=4)
    assert [step.seconds for step in seen] == [2.0] * 4


def test_validation_between_epochs_is_no_part_of_a_step():
    printed = [(1.0, "0/2 ["), (2.0, "1/2 ["), (3.0, "2/2 ["), (60.0, "0/2 ["), (61.0, "1/2 ["), (62.0, "2/2 [")]
    assert [step.seconds for step in timed(printed, BAR)] == [1.0] * 4


def test_lines_that_come_at_once_share_the_time_since_the_last():
    counter = steps.StepCounter(ranks=2, now_s=0.0)
    lines = [each for number in range(4) for each in facts(f"step {number}", STEP)]
    assert [step.seconds for step in counter.read(lines, 2.0)] == [0.5] * 4


def test_a_time_that_is_printed_goes_before_the_clock():
    seen = timed(numbered([1, 2, 3], MEGATRON, every_s=9.0), formats()["megatron"]["pattern"])
    assert [(step.seconds, step.loss) for step in seen] == [(0.5, 1.0)] * 3


def test_what_a_validation_prints_is_no_step_of_torchtitan():
    pattern = formats()["torchtitan"]["pattern"]
    assert facts(TORCHTITAN.format(3), pattern)[0]["memory_gib"] == "1.50"
    assert not facts("validate step:  5  loss:  2.5000  memory:  1.00GiB(2%)  tps: 9", pattern)


def test_what_deepspeed_prints_before_its_first_step_is_no_step():
    """Its first step, which compiles, is therefore the one that is left out as warm-up."""
    printed = [(9.0, LINES["deepspeed"].format(0)), (14.0, LINES["deepspeed"].format(1)), (14.5, LINES["deepspeed"].format(2))]
    assert [step.seconds for step in timed(printed, formats()["deepspeed"]["pattern"])] == [5.0, 0.5]


@pytest.mark.parametrize("loss", ["nan", "inf"])
def test_a_step_whose_loss_is_not_finite_is_a_step_with_that_loss(loss):
    for name, text in {"torchtitan": TORCHTITAN, "hf-trainer": TRAINER, "megatron": MEGATRON}.items():
        printed = text.format(1).replace("2.50000", loss).replace("2.5", loss).replace("1.0E+00", loss)
        (step,) = timed([(1.0, printed)], formats()[name]["pattern"])
        assert str(step.loss) == loss and math.isfinite(step.seconds)


def test_a_step_time_out_of_bounds_is_not_called_an_objective():
    with pytest.raises(ValueError, match="a step time has to lie between") as raised:
        timed([(1.0, "step took 1e-30 ms")], r"took (?P<ms>\S+) ms")
    assert "objective" not in str(raised.value)


TIMED = r"step (?P<step>\d+) (?:loss (?P<loss>\S+) )?(?:(?P<s>\S+) s|(?P<ms>\S+) ms|(?P<per_s>\S+) it/s)$"


def read_times(texts, every_s):
    """The seconds of the steps that a program prints in such words, a line every so many seconds."""
    lines = [(every_s * (number + 1), f"step {number} {text}") for number, text in enumerate(texts)]
    return [step.seconds for step in timed(lines, TIMED, ranks=1)]


@pytest.mark.parametrize(
    ("texts", "every_s", "expected"),
    [
        (["0,998 s", "1,002 s", "1,004 s"], 1.0, [0.998, 1.002, 1.004]),
        (["2,976 ms", "2,984 ms", "2,981 ms"], 3.0, [2.976, 2.984, 2.981]),
        (["2,976 ms", "2,984 ms", "2,981 ms"], 0.003, [2.976, 0.002984, 0.002981]),  # the first step is not measured
        (["1,976 it/s", "2,000 it/s"], 0.5, [1 / 1976, 0.5]),
        (["1,976 it/s", "2,000 it/s"], 0.0005, [1 / 1976, 0.0005]),
        (["loss 10,5 1,002 s", "loss 9,25 1,004 s"], 1.0, [1.002, 1.004]),
        (["loss 1,234.5 1,002 ms", "loss 9.25 1,004 ms"], 1.0, [1.002, 1.004]),
    ],
)
def test_a_comma_of_two_meanings_has_that_of_the_programs_other_numbers_or_that_of_the_clock(texts, every_s, expected):
    assert read_times(texts, every_s) == pytest.approx(expected)


def test_a_loss_has_the_decimal_comma_of_the_times():
    seen = timed([(1.0, "step 0 loss 2,976 0,998 s"), (2.0, "step 1 loss 1,976 1,002 s")], TIMED, ranks=1)
    assert [step.loss for step in seen] == [2.976, 1.976]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,234.5", 1234.5),
        ("2,976", 2976.0),
        ("1,234,567", 1234567.0),
        ("0,052", 0.052),
        ("12,3456", 12.3456),
        ("1234,5", 1234.5),
        ("1.234,5", 1234.5),
        ("-1,5e-3", -1.5e-3),
        ("nan", math.nan),
        ("1,2,3", None),
    ],
)
def test_a_comma_separates_thousands_or_is_a_decimal_one(text, number):
    assert steps.float_in(text) == pytest.approx(number, nan_ok=True)
