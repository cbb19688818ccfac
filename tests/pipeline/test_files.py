"""A schedule or a file of times reads as it was written, and an error names what is invalid in it."""

import pytest

from oppa.errors import InputError
from oppa.pipeline.costs_file import choose, read_profiled
from oppa.pipeline.schedules import FOLDED, SCHEDULES, build_schedule
from oppa.pipeline.torch_csv import parse_schedule, to_csv

HEAD = "model,pp,microbatches,T_F_ms,T_B_ms,T_W_ms,T_comm_ms"


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "file.csv"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("name", SCHEDULES)
def test_an_order_is_read_as_it_was_written(name):
    made = build_schedule(name, ranks=3, micro_batches=6, chunks=2 if name in FOLDED else 1)
    text = to_csv(made)
    found = parse_schedule(text, "the file")
    assert found.ranks == made.ranks and found.shape == made.shape
    assert to_csv(found) == text


def test_torch_reads_it():
    from torch.distributed.pipelining.schedules import _Action

    made = build_schedule("zb-h1", ranks=2, micro_batches=3)
    rows = [[str(_Action.from_str(cell)) for cell in line.split(",")] for line in to_csv(made).splitlines()]
    assert rows == [["0F0", "0F1", "0B0", "0F2", "0B1", "0B2"], ["1F0", "1I0", "1F1", "1I1", "1W0", "1F2", "1I2", "1W1", "1W2"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0X0\n", "line 1: `0X0` is not an action"),
        ("0F0\n1F0,1B0\n", r"B\(stage 0, micro-batch 0\) is missing"),
        ("0B0,0F0\n1F0,1B0\n", "deadlocks"),
        ("0F0,0F0,0B0\n1F0,1B0\n", "occurs 2 times"),
        ("0F0,0B0\n\n", "has no actions"),
        ("", "has no actions"),
    ],
)
def test_an_invalid_schedule_is_named(text, message):
    with pytest.raises(InputError, match=message):
        parse_schedule(text, "the file")


def test_times_are_those_of_the_nearest_number_of_micro_batches(written):
    profiled = read_profiled(written(f"{HEAD}\na,2,8,1,2,3,0.5\na,2,32,4,5,6,0\nb,4,8,1,1,1,1\n"))
    found = choose(profiled, stages=2, micro_batches=10)
    assert found.micro_batches == 8 and found.costs.forward_s == [0.001, 0.001] and found.costs.transfer_s == 0.0005
    assert choose(profiled, stages=2, micro_batches=64).costs.weight_s == [0.006, 0.006]
    assert choose(profiled, stages=4, micro_batches=8).model == "b"


def test_stages_may_have_a_row_each(written):
    (found,) = read_profiled(written("stage,T_F_ms,T_B_ms,T_W_ms\n1,3,4,5\n0,1,2,0\n"), weight_memory=0.25)
    assert found.costs.forward_s == [0.001, 0.003] and found.costs.weight_s == [0.0, 0.005] and found.costs.weight_memory == 0.25


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model,T_F_ms,T_B_ms\na,1,2\n", "no column `T_W_ms`"),
        (f"{HEAD}\n", "has no rows"),
        (f"{HEAD}\na,2,8,1,2,3,0\nb,2,8,one,2,3,0\n", "line 3: `T_F_ms = one` is not a time"),
        (f"{HEAD}\na,2,8,-1,2,3,0\n", "`T_F_ms = -1` is not a time"),
        (f"{HEAD}\na,2,8,nan,2,3,0\n", "`T_F_ms = nan` is not a time"),
        (f"{HEAD}\na,two,8,1,2,3,0\n", "`two` is not a number of stages"),
        (f"{HEAD}\na,2,8,1,2,3,0\na,2,8,1,2,3,0\n", "2 rows describe the same pipeline"),
        ("T_F_ms,T_B_ms,T_W_ms\n1,2,3\n", "does not state the number of stages"),
        ("stage,T_F_ms,T_B_ms,T_W_ms\n0,1,2,3\n2,1,2,3\n", "the stages are 0, 2, not 0 to 1"),
        ("", "cannot be read as CSV"),
    ],
)
def test_what_is_no_time_is_named_with_its_line(text, message, written):
    with pytest.raises(InputError, match=message) as caught:
        read_profiled(written(text))
    assert caught.value.hint


def test_what_the_file_has_no_times_of_is_named_with_what_it_has(written):
    profiled = read_profiled(written(f"{HEAD}\na,2,8,1,2,3,0\nb,2,8,1,1,1,1\n"))
    for asked, message, hint in (
        ({"stages": 3}, "3 stages", "2"),
        ({"stages": 2}, "several models", "a, b"),
        ({"stages": 2, "model": "c"}, "`c`", ""),
    ):
        with pytest.raises(InputError, match=message) as caught:
            choose(profiled, micro_batches=8, **asked)
        assert hint in caught.value.hint


def test_the_last_stage_sends_to_no_next_one(written):
    rows = "".join(f"{stage},10,11,5,{transfer}\n" for stage, transfer in enumerate([0.1, 0.2, 20]))
    (found,) = read_profiled(written("stage,T_F_ms,T_B_ms,T_W_ms,T_comm_ms\n" + rows))
    assert found.costs.transfer_s == pytest.approx(0.0002)
