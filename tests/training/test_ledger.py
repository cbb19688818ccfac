"""The ledger proves that each sample counts once, and refuses lines that contradict it."""

import contextlib
import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from oppa.errors import CheckpointError
from oppa.random_streams import stream
from oppa.table.refinement import BETWEEN_RUNS_LOG_STDDEV, together
from oppa.training.run.ledger import (
    CHANGED,
    FILE,
    ORDER_TAKEN_UP,
    REORDERED,
    STARTED,
    STEP,
    Ledger,
    Line,
    Tail,
    first_step,
    last,
    latest_steps,
    lines,
    read,
    require_whole,
    size,
    standing,
)
from oppa.training.run.standing_lines import StandingLines
from oppa.training.run.step_times import observations
from tests.training.full_disk import full


def started(step: int) -> Line:
    return {"event": STARTED, "step": step, "samples": 0}


def stepped(step: int, *bounds: int) -> Line:
    """A step whose replicas took what lies between these numbers."""
    shares = [[start, stop, 7] for start, stop in itertools.pairwise(bounds)]
    return {"event": STEP, "step": step, "samples": [bounds[0], bounds[-1]], "shares": shares}


WHOLE = [started(0), stepped(0, 0, 2, 4), stepped(1, 4, 12), stepped(2, 12, 14, 16)]


def test_each_sample_once_and_in_order_is_whole() -> None:
    assert require_whole(WHOLE) == 16 and require_whole(WHOLE, lambda _: 7) == 16 and require_whole([]) == 0


@pytest.mark.parametrize(
    ("number", "line", "what"),
    [
        (2, stepped(1, 5, 12), "sample 4 was expected, but a replica read 5"),
        (2, stepped(1, 3, 12), "sample 4 was expected, but a replica read 3"),
        (3, stepped(2, 12, 14), ""),
        (1, {**stepped(0, 0, 2), "samples": [0, 4]}, "its samples end at 4, but those of its replicas at 2"),
    ],
)
def test_a_sample_that_is_missing_or_comes_twice_is_found(number: int, line: Line, what: str) -> None:
    lines = [*WHOLE[:number], line, *WHOLE[number + 1 :]]
    if not what:
        assert require_whole(lines) == 14
        return
    with pytest.raises(CheckpointError, match=what):
        require_whole(lines)


def test_what_a_replica_was_shown_must_be_the_samples_of_these_numbers() -> None:
    with pytest.raises(CheckpointError, match="step 1: a replica read other data than the samples 4 to 11"):
        require_whole(WHOLE, lambda numbers: 7 if 4 not in numbers else 8)


def test_what_was_lost_with_an_attempt_does_not_stand() -> None:
    lines = [*WHOLE, started(1), stepped(1, 4, 6)]
    assert standing(lines) == [*WHOLE[:2], *lines[4:]]
    assert require_whole(standing(lines)) == 6


def test_a_line_that_was_not_finished_is_not_there_and_does_not_spoil_the_next(tmp_path: Path) -> None:
    with contextlib.closing(Ledger(tmp_path)) as first:
        first.write(STARTED, step=0)
    with (tmp_path / "steps.jsonl").open("ab") as file:
        file.write(b'{"event": "step", "st')
    assert [line["event"] for line in read(tmp_path)] == [STARTED]
    with contextlib.closing(Ledger(tmp_path)) as second:
        second.write(STEP, step=0)
    assert [line["event"] for line in read(tmp_path)] == [STARTED, STEP]


def test_lines_that_a_full_disk_refuses_are_written_once_it_has_space(tmp_path: Path) -> None:
    with contextlib.closing(Ledger(tmp_path)) as ledger:
        with full(100):
            for step in range(20):
                ledger.write(STEP, step=step)
            with pytest.raises(OSError, match="too large"):
                ledger.sync()
        assert [line["step"] for line in read(tmp_path)] == [0, 1, 2]
        ledger.write(STEP, step=20)
        ledger.sync()
        assert [line["step"] for line in read(tmp_path)] == list(range(21))


def test_a_disk_that_stays_full_fails_the_run_before_its_lines_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oppa.training.run.ledger.REFUSED_BYTES", 100)
    ledger = Ledger(tmp_path)
    with full(10), pytest.raises(OSError, match="too large"):
        for step in range(20):
            ledger.write(STEP, step=step)
    ledger.close()


def test_a_ledger_of_any_length_is_read_and_its_first_lines_without_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oppa.training.run.ledger.LIMIT_BYTES", 100)
    with contextlib.closing(Ledger(tmp_path)) as ledger:
        for step in range(20):
            ledger.write(STEP, step=step)
    assert len(read(tmp_path)) == 20 and size(tmp_path) > 100
    with (tmp_path / FILE).open("ab") as file:
        file.write(b"nonsense\n")
    assert next(lines(tmp_path))["step"] == 0
    with pytest.raises(CheckpointError, match="is damaged"):
        list(lines(tmp_path))


@pytest.mark.parametrize("kept_bytes", [0, 1 << 20])
@pytest.mark.parametrize("starts", [(), (0,), (0, 3, 5), (0, 5, 3), (0, 2, 2), (4, 0)])
def test_the_lines_that_stand_are_the_same_when_they_are_streamed(
    starts: tuple[int, ...], kept_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oppa.training.run.standing_lines.KEPT_BYTES", kept_bytes)
    assert list(StandingLines(tmp_path)) == [] and last(tmp_path) is None
    with contextlib.closing(Ledger(tmp_path)) as ledger:
        ledger.write("profiled", step=0)
        for start in starts:
            ledger.write(STARTED, step=start)
            for step in range(start, 7):
                ledger.write(STEP, step=step, samples=[8 * step, 8 * step + 8])
        found = StandingLines(tmp_path)
        assert list(found) == standing(read(tmp_path)) == found[:] and len(found) == len(standing(read(tmp_path)))
        assert last(tmp_path) == found[-1]
        ledger.write(STARTED, step=0)
    assert list(found) == standing(read(tmp_path)[:-1]), "they are those up to the end at that time"


def test_a_damaged_ledger_is_reported(tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_text('{"event": "started"}\nnonsense\n')
    with pytest.raises(CheckpointError, match="is damaged"):
        read(tmp_path)


@pytest.mark.parametrize("count", [0, 1, 40, 5_000])
def test_the_ends_of_a_ledger_are_found_without_reading_it_all(count: int, tmp_path: Path) -> None:
    ledger, sizes = Ledger(tmp_path), list[int]()
    for number in range(count):
        if number % 7 == 0:
            ledger.write(STARTED, step=number, samples=8 * number)
        sizes.append(size(tmp_path))
        ledger.write(STEP, step=number, samples=[8 * number, 8 * number + 8], shares=[])
    ledger.close()
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"event": "st')  # in the middle of a line
    assert size(tmp_path) == len((tmp_path / FILE).read_bytes()) - len(b'{"event": "st')
    for begin in {0, count // 2, count - 1} if count else ():
        first = first_step(tmp_path, sizes[begin])
        assert first is not None and first["step"] == begin
        for wanted in (1, 3, count):
            behind = [line["step"] for line in latest_steps(tmp_path, wanted, begin=sizes[begin])]
            assert behind == list(range(max(begin, count - wanted), count))
            before = [line["step"] for line in latest_steps(tmp_path, wanted, end=sizes[begin])]
            assert before == list(range(max(0, begin - wanted), begin))
    assert first_step(tmp_path, size(tmp_path)) is None and latest_steps(tmp_path, 3, begin=size(tmp_path)) == []


def test_a_run_that_has_not_begun_has_no_ends(tmp_path: Path) -> None:
    assert size(tmp_path) == 0 and first_step(tmp_path, 0) is None and latest_steps(tmp_path, 1) == []


def test_a_tail_tells_each_line_once_when_it_is_whole(tmp_path: Path) -> None:
    tail = Tail(tmp_path)
    assert tail.new() == []
    with contextlib.closing(Ledger(tmp_path)) as ledger:
        ledger.write(STARTED, step=0)
    assert [line["event"] for line in tail.new()] == [STARTED] and tail.new() == []
    with (tmp_path / "steps.jsonl").open("ab") as file:
        file.write(b'{"event": "st')
        file.flush()
        assert tail.new() == []
        file.write(b'ep"}\n')
    assert [line["event"] for line in tail.new()] == [STEP]
    assert Tail(tmp_path).new() == [], "what was there before is not new"


def test_a_line_that_is_half_written_when_a_tail_begins_is_yielded_once_it_is_whole(tmp_path: Path) -> None:
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"event": "started"}\n{"event": "st')
        file.flush()
        tail = Tail(tmp_path)
        file.write(b'ep"}\n')
    assert [line["event"] for line in tail.new()] == [STEP]


def ran(*times_s: float) -> list[Line]:
    return [{"event": STEP, "step_time_s": time_s} for time_s in times_s]


def test_step_times_tell_of_each_stretch_but_its_first_step() -> None:
    one, other = ({"dp": dp, "global_batch": 8, "micro_batch": 1} for dp in (1, 2))
    begin, change, back = {"event": STARTED, "configuration": one}, {"event": CHANGED, "after": other}, {"event": CHANGED, "after": one}
    seen = observations([begin, *ran(9, 1, 1, 1), change, *ran(9, 2), back, *ran(9, 1, 3), {"event": "saved"}, *ran(2), begin, *ran(9)])
    assert [(each.configuration.dp, each.steps) for each in seen] == [(1, 3), (1, 3)], "one step says nothing of its spread"
    assert [math.exp(-each.log_steps_per_s) for each in seen] == pytest.approx([1.0, 2.0])
    assert observations([]) == []


def test_a_micro_batch_that_was_taken_in_two_says_nothing_of_the_speed_if_others_do() -> None:
    def begin(micro_batch: int) -> Line:
        return {"event": STARTED, "configuration": {"dp": 1, "global_batch": 8, "micro_batch": micro_batch}}

    steps = [*ran(9, 1, 1), *({**each, "variance_ratio": 5.0} for each in ran(2, 2)), *ran(1)]
    seen = observations([begin(8), *steps, begin(4), *steps, begin(8), *steps[:1], *steps[3:5]])
    assert [(each.configuration.micro_batch, each.steps) for each in seen] == [(8, 3), (4, 5), (8, 2)]
    assert [math.exp(-each.log_steps_per_s) for each in seen] == pytest.approx([1.0, 1.4, 2.0])


def test_steps_before_a_schedule_was_found_do_not_count() -> None:
    """The event of a found schedule precedes the last step without it."""
    here, there = ({"dp": dp, "pp": 2, "schedule": "search", "global_batch": 8, "micro_batch": 1} for dp in (1, 2))
    begin, found, taken = {"event": STARTED, "configuration": here}, {"event": REORDERED}, {"event": ORDER_TAKEN_UP}
    first = [begin, *ran(9, 5, 5, 5), found, *ran(5, 9, 1, 1)]
    away = [{"event": CHANGED, "after": there}, *ran(9, 4, 4), {"event": CHANGED, "after": here}, taken, *ran(9, 1, 1, 1)]
    seen = observations([*first, *away])
    assert [(each.configuration.dp, each.steps) for each in seen] == [(1, 2), (2, 2), (1, 3)]
    assert [math.exp(-each.log_steps_per_s) for each in seen] == pytest.approx([1.0, 4.0, 1.0])
    resumed = observations([begin, *ran(9, 5, 5), begin, taken, *ran(9, 1, 1)])
    assert [each.steps for each in resumed] == [2], "the attempt that found it is void"


def test_two_steps_that_agree_by_chance_do_not_outweigh_hundreds() -> None:
    random, begin = stream(0, "attempts"), {"event": STARTED, "configuration": {"dp": 1, "global_batch": 8, "micro_batch": 1}}

    def attempts() -> list[Line]:
        return [line for steps in (2, 2, 2, 200) for line in [begin, *ran(9, *(1 + 0.05 * random.normal(size=steps)))]]

    seen = [together(observations(attempts())).popitem()[1] for _ in range(300)]
    stated = np.mean([each.variance for each in seen]) - BETWEEN_RUNS_LOG_STDDEV**2
    assert np.var([each.mean for each in seen]) < 1.5 * stated
