"""The predicted probabilities to fit are counted against what ran, and every comparison records them."""

import dataclasses

from oppa.bench.run_designer import run_designer
from oppa.bench.runs import SearchRun
from oppa.bench.sections import confusion_section, fit_section
from oppa.study import Prediction
from oppa.tuning.stopping import make_rule
from tests.bench.searches import InOrder, run_of, small_task


class Repeating(InOrder):
    """Tries the first candidate twice and then the second one, and expects of all that they fit with three chances in four."""

    def __init__(self) -> None:
        self._order = iter((0, 0, 1))

    def suggest(self, taken):
        return next(self._order, None)

    def predict(self, candidate):
        return Prediction(steps_per_s=1.0, log_stddev=0.1, memory_bytes=9, probability_fits=0.75)


def run_with(chances: tuple[float | None, ...], outcomes: str) -> SearchRun:
    run = run_of((1.0,) * len(outcomes), tuple(map(float, range(len(outcomes)))))
    return dataclasses.replace(run, probability_fits=chances, outcomes=outcomes)


def test_trials_are_counted_by_their_probability() -> None:
    section = fit_section([run_with((0.05, 0.9, 0.95, None), "mcmf"), run_with((0.93, 1.0), "tc")])
    assert section is not None
    assert section.rows == [
        ("oppa", "0% - 10%", "1", "5%", "0%"),
        ("oppa", "90% - 99%", "3", "93%", "67%"),
        ("oppa", "99% - 100%", "1", "100%", "100%"),
    ]


def test_a_log_without_probabilities_has_no_such_table() -> None:
    older = run_of((1.0, 1.0), (1.0, 2.0))
    assert older.probability_fits == () and fit_section([older]) is None


def test_what_is_predicted_to_fit_has_at_least_one_chance_in_two() -> None:
    run = dataclasses.replace(run_with((0.6, 0.4, None), "cmc"), predicted_memory=(1.2, 0.5, 0.5))
    section = confusion_section([run])
    assert section is not None and section.rows == [("oppa", "2", "0", "0", "1")]


def test_a_run_records_the_probability_of_what_was_not_tried_before() -> None:
    task = small_task()
    records = run_designer(task, Repeating(), make_rule("never", task.problem.limits), seed=0, trials=3)
    assert SearchRun.of(task, "mine", 0, "", records).probability_fits == (0.75, None, 0.75)
