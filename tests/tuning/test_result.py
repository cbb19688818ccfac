"""Laws of the finding: the winner is what its repeats prove, and nothing else."""

import dataclasses

import pytest

from oppa.study import Trial
from oppa.tuning.result import current

REPEATS = 3


class Record:
    """A study's trials, written down by hand: candidates by their index, throughput in steps per second."""

    def __init__(self, candidates) -> None:
        self.candidates = candidates
        self.trials: list[Trial] = []

    def search(self, index, steps_per_s, outcome="completed"):
        return self._add(index, steps_per_s, outcome, None)

    def repeat(self, best, default, ours, theirs, outcome="completed"):
        """Repeats of a pairing, in turn."""
        pairing = "|".join(self.candidates.configuration(index).id for index in (best, default))
        for rate in ours:
            self._add(best, rate, outcome, pairing)
        for rate in theirs:
            self._add(default, rate, "completed", pairing)

    def _add(self, index, steps_per_s, outcome, pairing):
        trial = Trial(
            id=len(self.trials) + 1,
            configuration=self.candidates.configuration(index),
            purpose="verification" if pairing else "search",
            pairing=pairing,
            outcome=outcome,
            cause="",
            rank=None,
            traceback="",
            step_times_s=(),
            steps_per_s=steps_per_s if outcome == "completed" else None,
            variance=0.0,
            memory_bytes=1,
            prediction=None,
            seconds=1.0,
            setup_s=0.1,
            started_at=0.0,
        )
        self.trials.append(trial)
        return trial

    def finding(self):
        return current(self.trials, self.candidates, REPEATS)


@pytest.fixture
def record(candidates):
    return Record(candidates)


@pytest.fixture
def default(candidates):
    return int(candidates.default_order()[0])


@pytest.fixture
def others(candidates):
    """Three candidates that are no defaults."""
    usual = set(map(int, candidates.default_order()))
    return [index for index in range(len(candidates)) if index not in usual][:3]


def test_nothing_feasible_finds_nothing(record, default) -> None:
    assert record.finding() is None
    record.search(default, None, "out_of_memory")
    assert record.finding() is None


def test_the_fastest_is_repeated_against_the_default_in_turn(record, default, others, candidates) -> None:
    record.search(default, 1.0)
    record.search(others[0], 2.0)
    best, usual = candidates.configuration(others[0]), candidates.configuration(default)
    order = []
    for _ in range(2 * REPEATS):
        due = record.finding().missing(REPEATS)
        order.append(due)
        record.repeat(others[0], default, [2.0] * (due == best), [1.0] * (due == usual))
    assert order == [best, usual, usual, best, best, usual]
    assert record.finding().missing(REPEATS) is None
    assert record.finding().gain.ratio.value == pytest.approx(2.0)


def test_one_that_runs_out_of_memory_in_a_repeat_is_dropped(record, default, others) -> None:
    record.search(default, 1.0)
    record.search(others[0], 3.0)
    second = record.search(others[1], 2.0)
    record.repeat(others[0], default, [None], [], outcome="out_of_memory")
    assert record.finding().best == second


def test_one_stray_failure_is_repeated_and_two_are_not(record, default, others, candidates) -> None:
    record.search(default, 1.0)
    first = record.search(others[0], 3.0)
    record.repeat(others[0], default, [None], [], outcome="failed")
    assert record.finding().best == first and record.finding().missing(REPEATS) == first.configuration
    record.repeat(others[0], default, [None], [], outcome="failed")
    assert record.finding().best.configuration == candidates.configuration(default)


def test_one_that_is_slower_than_the_default_makes_way_for_the_next(record, default, others) -> None:
    usual = record.search(default, 1.0)
    record.search(others[0], 3.0)
    second = record.search(others[1], 2.0)
    record.repeat(others[0], default, [0.8, 0.9, 0.8], [1.0, 1.0, 1.1])
    assert record.finding().best == second
    record.repeat(others[1], default, [0.8, 0.9, 0.8], [1.0, 1.0, 1.1])
    assert record.finding().best == usual and record.finding().gain is None


def test_repeats_of_another_pairing_do_not_count(record, default, others) -> None:
    record.search(default, 1.0)
    record.search(others[0], 2.0)
    record.repeat(others[0], default, [2.0] * 3, [1.0] * 3)
    faster = record.search(others[1], 4.0)
    finding = record.finding()
    assert finding.best == faster and finding.gain is None and finding.missing(REPEATS) == faster.configuration


def test_without_a_feasible_default_the_winner_stands_alone(record, default, others) -> None:
    record.search(default, None, "out_of_memory")
    best = record.search(others[0], 2.0)
    finding = record.finding()
    assert finding.default is None and finding.gain is None and finding.missing(REPEATS) == best.configuration


def test_interrupted_trials_say_nothing(record, default) -> None:
    record.trials.append(dataclasses.replace(record.search(default, 1.0), outcome="interrupted"))
    record.trials.pop(0)
    assert record.finding() is None
