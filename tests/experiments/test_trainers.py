"""The page of users' trainers shows their runs and the cost of statistics, here from made-up numbers."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.goodput.gains import SHARES, Gains, static_targets
from experiments.lib.recorded_page import written_page
from experiments.lib.recorder import Recorder
from experiments.lib.run_trace import RunTrace
from experiments.libraries.lines import PYTHON
from experiments.trainers.command import command
from experiments.trainers.extent import Extent
from experiments.trainers.run import INTEGRATIONS, TrainerComparison, sections, to_json
from experiments.trainers.statistics_cost import StatisticsCost, costs
from experiments.trainers_goodput import experiment, page, predictions
from experiments.trainers_goodput.limits import GainLimits, edge_text, limit_section
from oppa import catalog
from oppa.errors import EnvironmentLackingError, InputError
from oppa.problem.configuration import Configuration
from oppa.problem.detect import this_machine
from oppa.problem.job import load_job
from tests.control.conftest import table as known
from tests.control.conftest import table_of  # noqa: F401 - a fixture
from tests.experiments.comparisons import TARGETS, compared, trace

table = known
JOB, COMMAND = Path("examples", "transformers_trainer.toml"), experiment.CPU.command


def results() -> page.TrainerResults:
    return page.TrainerResults(compared())


def test_the_gain_is_over_the_best_static_batch_by_each_clock() -> None:
    found = results().over_static()
    assert [each.rivals for each in found.values()] == [("static-8", "static-8")] * 3
    # The loss falls linearly over 2000 samples: 200 per second and a change of 1 s, against 50 per second.
    seconds = [((3 - target) / 1.5 * 2000) / 200 + (target == 2.0) * 1.0 for target in TARGETS]
    static = [((3 - target) / 1.5 * 2000) / 50 for target in TARGETS]
    expected = sum(1 - ours / theirs for ours, theirs in zip(seconds, static, strict=True)) / 2
    assert found["recorded step times"].mean == pytest.approx(expected, abs=0.02)


def test_the_targets_are_losses_of_the_best_static_batch_and_no_other_run_moves_them() -> None:
    best = trace("static-8", 0, rate=100.0, end=1.5)  # ends after 20 s
    static = [trace("static-16", 0, rate=200.0, end=2.6), best]  # ends after 10 s: the best one is halfway then
    found = static_targets(static, window=100)
    assert found == pytest.approx([3 - 1.5 * share / 2 for share in SHARES], abs=0.01)
    assert static_targets([*static, trace("goodput", 0, rate=900.0, end=0.1)], window=100) == found


def test_restarts_are_counted() -> None:
    assert results().restarts() == {"goodput": 1, "cbs-pessimistic": 0, "static-8": 0}


def test_the_page_has_the_gain_and_its_rows_are_as_long_as_their_heads(tmp_path, monkeypatch, table) -> None:
    monkeypatch.setattr(page, "WINDOW", 100)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "origins.json").write_text('{"goodput-0": {"date": "now", "oppa": "9"}}')
    for each in compared(2).traces:
        each.write(tmp_path / "runs")
    table.write(tmp_path / "table")
    found = page.sections(tmp_path, COMMAND)
    assert all(len(row) == len(section.columns) for section in found for row in section.rows)
    assert found[0].rows[0][0] == "recorded step times"
    text = written_page(tmp_path, experiment.CPU.page(tmp_path)).read_text()
    assert "Gain over the best static batch" in text and "Where the gain is small, and why" in text
    figures = experiment.CPU.to_json(tmp_path, print)
    assert figures["seeds"] == 2 and figures["gain_over_static"]["wall clock"][1] > 0


def changed(each: RunTrace, **columns) -> RunTrace:
    return dataclasses.replace(each, steps=each.steps.assign(**columns))


def test_the_limits_of_a_gain_are_medians_of_our_runs() -> None:
    batches, noise_scale = np.repeat([8, 16], 100), np.repeat([np.nan, 20.0, 40.0, 60.0], 50)
    ours = [changed(trace("goodput", seed, change_s=2.0), global_batch=batches, noise_scale=noise_scale) for seed in range(3)]
    found = GainLimits.of(ours, [16, 64])
    assert found.samples_at_best == pytest.approx(2 / 3) and found.noise_scale == 40
    assert found.changing == pytest.approx(2 / (200 * 0.1 + 2))


@pytest.mark.parametrize(
    ("changing", "at_best", "cause"), [(0.05, 0.9, "Changes take"), (0.01, 0.9, "nothing can be gained"), (0.01, 0.1, "other batches")]
)
def test_a_small_gain_is_explained_and_a_large_one_is_not(changing, at_best, cause) -> None:
    limits = GainLimits(best=[32], noise_scale=20.0, samples_at_best=at_best, changing=changing)
    gained = {"a": 0.1, "b": 0.01, "c": 0.1}
    rates = {clock: Gains(rivals=("static-32",), by_seed=np.full((2, 1), gain)) for clock, gain in gained.items()}
    rates["c"] = Gains(rivals=("static-32",), by_seed=np.array([[-0.1], [0.3]]))  # its interval includes 0
    text = limit_section(limits, rates).text
    assert "touches 0, by b, c." in text and cause in text
    assert "seeds differ" in limit_section(limits, {"c": rates["c"]}).text
    assert "lies above 0" in limit_section(limits, {"a": rates["a"]}).text


def test_a_best_batch_at_an_edge_of_the_compared_ones_is_named() -> None:
    assert edge_text([8, 16, 32], [16, 32]).endswith(": 32 is best at a loss and lies at an edge.")
    assert edge_text([8, 16, 32], [16]).endswith(": none that is best lies at an edge.")


def test_restarts_are_stated_with_the_fastest_layouts_of_the_table(table, table_of) -> None:  # noqa: F811
    of_one = table_of([each for each in table.rows if each.configuration.pp == 2])
    several, one = (page.restart_text(results(), each) for each in (table, of_one))
    assert "goodput 1, cbs-pessimistic 0" in several and "2 are the fastest" in several
    assert f"One layout is the fastest of the table at every batch, so no restart would pay off: `{of_one.rows[0].strategy.id}`." in one


def test_the_prior_is_compared_with_the_measured_table_as_it_was_before_the_first_trial(tmp_path, table) -> None:
    job = catalog.root() / "examples" / "transformers_gpu.toml"
    predictions.write(tmp_path, job, experiment.GPU.batches)
    written = (tmp_path / predictions.NAME).read_text()
    known = [dict(zip(predictions.KEYS, line.split(","), strict=False)) for line in written.splitlines()[1:]]
    assert {(each["global_batch"], each["recompute"]) for each in known} >= {("8", "none"), ("64", "full")}
    rows = [
        dataclasses.replace(
            table.rows[0],
            configuration=Configuration(dp=1, global_batch=batch, micro_batch=8, recompute=recompute),
            steps_per_s=10.0,
            memory_bytes=None if batch == 8 else 1 << 30,
        )
        for batch in (8, 16)
        for recompute in ("none", "full")
    ]
    dataclasses.replace(table, rows=rows).write(tmp_path / "table")
    predictions.write(tmp_path, job, (8,))  # a measured table never gets another prediction
    assert (tmp_path / predictions.NAME).read_text() == written
    section = predictions.section(tmp_path)
    assert [row[0] for row in section.rows] == [8, 8, 16, 16] and {row[3] for row in section.rows} == {"100"}
    assert [row[7] for row in section.rows] == ["–", "–", "1.00", "1.00"]
    assert all(len(row) == len(section.columns) for row in section.rows)
    found = predictions.to_json(tmp_path)
    assert f"{found['first_picks']} of 2 batches" in section.text and f"{found['time_ratio'][1]:.2f} in the median" in section.text
    sizes = [float(row[8]) for row in section.rows[2:]]
    assert found["memory_ratio"] == pytest.approx([min(sizes), sum(sizes) / 2, max(sizes)], rel=1e-2)


def test_a_profile_is_a_page_before_the_first_training(tmp_path, table) -> None:
    predictions.write(tmp_path, catalog.root() / "examples" / "transformers_gpu.toml", (8,))
    row = dataclasses.replace(
        table.rows[0], configuration=Configuration(dp=1, global_batch=8, micro_batch=8), steps_per_s=10.0, memory_bytes=1 << 30
    )
    dataclasses.replace(table, rows=[row]).write(tmp_path / "table")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "origins.json").write_text(json.dumps({"table": {"command": "profile", "date": "d", "oppa": "o"}}))
    text, figures = experiment.GPU.page(tmp_path)
    assert text.startswith("# Profile: ") and "80.0 *" in text and "`oppa bench trainers-goodput-gpu --run` goes on with them" in text
    assert "raw log" not in text and not figures
    assert experiment.GPU.to_json(tmp_path, print)["prior"] == predictions.to_json(tmp_path)
    with pytest.raises(InputError, match="no record of a run"):
        experiment.CPU.page(tmp_path)


def test_without_records_the_command_is_named(tmp_path) -> None:
    with pytest.raises(InputError, match="no record of a run") as caught:
        page.TrainerResults.read(tmp_path, COMMAND)
    assert COMMAND in caught.value.hint


def test_each_seed_trains_every_variant_once_and_begins_with_another(table, tmp_path, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(Recorder, "table", lambda self, batches: table)
    monkeypatch.setattr(Recorder, "train", lambda self, variant, seed, begins, *words: asked.append((variant, seed, begins, words)))
    experiment.run(Recorder(job=JOB, folder=tmp_path, work=tmp_path, tell=print), table.batches, range(2))
    names = [[variant for variant, at, _, _ in asked if at == seed] for seed in range(2)]
    assert sorted(names[0]) == sorted(names[1]) and names[0] == [names[1][-1], *names[1][:-1]]
    assert {f"static-{batch}" for batch in table.batches} < set(names[0])
    assert "goodput" in names[0] and len({(begins, words[1]) for _, _, begins, words in asked}) == len(names[0])


def test_the_job_is_read_and_its_launch_line_has_the_seed() -> None:
    problem = load_job(catalog.root() / JOB, settings=["training.seed=7"])
    values = {"devices_per_host": 2, "learning_rate": problem.training.learning_rate, "seed": problem.training.seed, "folder": "f"}
    candidates = problem.candidates()
    each = candidates.configuration(0)
    words = problem.launch_line(each).words({**each.to_dict(), **values}, {})
    assert words[words.index("--seed") + 1] == "7"
    assert {each.recompute for each in map(candidates.configuration, range(len(candidates)))} == {"none", "full"}


def test_the_cost_of_statistics_is_that_of_each_measured_step_over_the_others_up_to_the_next_one() -> None:
    measured = [False, True, False, False, True, True, False, True]
    seconds = [9.0, 1.1, 1.0, 1.0, 5.0, 2.4, 2.0, 7.0]
    assert costs(seconds, measured) == pytest.approx([0.1, 0.2])
    found = StatisticsCost(samples=8, interval=4.0, step_s=0.2, cpu=[0.04] * 9, wall=[0.08] * 9)
    assert found.overhead == pytest.approx(0.01) and found.of_all(found.wall) == pytest.approx((0.02,) * 3)


def test_a_short_form_writes_no_record(tmp_path) -> None:
    with pytest.raises(InputError, match="too little for a record"):
        command(short=True, out=tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_short_form_times_one_micro_batch_of_fewer_trainers_and_steps() -> None:
    short, whole = Extent(repeats=7, short=True), Extent(repeats=7)
    assert [each.name for each in INTEGRATIONS if short.includes(each.name)] == ["transformers", "fsdp2"]
    assert all(whole.includes(each.name) for each in INTEGRATIONS)
    assert (whole.samples(8000), whole.micro_batches((32, 8)), whole.settling, whole.timed_steps) == (8000, (32, 8), 100, 700)
    assert (short.samples(8000), short.micro_batches((32, 8)), short.settling, short.timed_steps) == (1600, (8,), 10, 30)


def test_the_tables_have_the_ranks_and_the_libraries_of_a_comparison() -> None:
    cost = StatisticsCost(samples=8, interval=4.0, step_s=0.2, cpu=[0.04] * 9, wall=[0.08] * 9)
    found = TrainerComparison(
        live_changes=1,
        restarts=0,
        own_changes=None,
        loss_difference=1e-6,
        resumed_difference=1e-2,
        client_s=2e-4,
        late_pauses_s=(),
        early_pauses_s=(),
        statistics=(cost,),
        seconds=1.0,
        extent=Extent(repeats=1, short=True),
        software={"torch": "2.13.0"},
    )
    compared, timed = sections({INTEGRATIONS[0]: found})
    assert "ran on torch 2.13.0." in compared.text and any("on 1 and 2 ranks" in label for label, _ in compared.rows)
    assert all(len(row) == len(timed.columns) for row in timed.rows) and "The first 10 steps do not count" in timed.text
    (figures,) = to_json({INTEGRATIONS[0]: found})["integrations"].values()
    assert figures["loss_equal"] and not figures["resumed_equal"]


def test_a_named_interpreter_runs_the_trainers(monkeypatch) -> None:
    named = [each for each in INTEGRATIONS if each.name not in ("deepspeed", "torchtitan")]
    assert {each.interpreter() for each in named} == {sys.executable}
    monkeypatch.setenv(PYTHON, "/env/bin/python")
    assert {each.interpreter() for each in named} == {"/env/bin/python"}


@pytest.mark.skipif(bool(this_machine().gpus), reason="this machine has a GPU")
def test_without_a_gpu_nothing_is_compared_on_one(tmp_path) -> None:
    with pytest.raises(EnvironmentLackingError, match="needs a CUDA device"):
        command(gpu=True, out=tmp_path)
    assert not [*tmp_path.iterdir()]


def test_one_rank_on_a_gpu_is_measured_by_the_wall_clock() -> None:
    on_gpu = Extent(repeats=1, gpu="H100")
    assert (on_gpu.ranks, on_gpu.places) == (1, "on one H100") and Extent(repeats=1).ranks == 2
    found = StatisticsCost(samples=8, interval=4.0, step_s=0.2, cpu=[0.04] * 9, wall=[0.08] * 9, on_gpu=True)
    assert found.overhead == pytest.approx(0.02)
