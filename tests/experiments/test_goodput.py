"""Time to loss: the arithmetic, on runs that are made up, and the page that comes of them."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from experiments.goodput import page, restarts
from experiments.goodput.gains import gains
from experiments.goodput.sections import GoodputComparison, change_section, changes_of, largest_change, seed_section, time_section
from experiments.goodput.variants import variants
from experiments.lib.recorded_page import written_page
from experiments.lib.recorder import Recorder
from experiments.lib.run_trace import RunTrace, hash_of, layout_of, pooled, time_to
from oppa import catalog
from oppa.errors import EnvironmentLackingError, InputError
from oppa.launchers.emulation.netlab import netlab_lacking
from oppa.problem.configuration import Configuration
from oppa.trials import processes
from tests.bench.remains import assert_gone, command_of
from tests.command_line import Oppa
from tests.control.conftest import table, table_of  # noqa: F401 - fixtures
from tests.experiments.comparisons import DATA, PIPE, TARGETS, compared, trace


def test_a_smoothed_loss_lies_on_the_line_that_it_fell_along() -> None:
    one = trace("static-8", 0)
    expected = 3 - 1.5 * one.samples / 2000
    assert one.smoothed(100)[:-1] == pytest.approx(expected[:-1], abs=0.01)


def test_the_time_to_a_loss_is_that_of_the_samples_it_takes() -> None:
    one = trace("static-8", 0)
    found = time_to(one, [2.5, 2.0, 1.0], one.clock_s, 100)
    assert found[:2] == pytest.approx([(0.5 / 1.5) * 20, (1 / 1.5) * 20], rel=0.01) and found[2] == np.inf


def test_pauses_count_on_both_clocks_and_not_on_the_ideal_one() -> None:
    one = trace("goodput", 0, change_s=3.0)
    assert (one.clock_s[-1], one.ideal_s[-1]) == pytest.approx((23.0, 20.0))
    assert one.elapsed_s[-1] == pytest.approx(23.0 + 199 * 0.01)
    assert one.commands == {"reconfigures": 1, "scale_bs": 0}


def test_like_steps_take_alike_whatever_the_machine_did_meanwhile() -> None:
    slow, usual, quick = (trace("static-8", seed, rate=rate) for seed, rate in enumerate([50.0, 100.0, 200.0]))
    changing = trace("static-8", 3, rate=80.0, change_s=3.0)
    found = pooled([slow, usual, quick, changing])
    assert [each.ideal_s[-1] - each.ideal_s[0] for each in found[:3]] == pytest.approx([199 * 10 / 90] * 3, rel=0.2)
    assert len({round(float(each.ideal_s[-1] - each.ideal_s[0]), 9) for each in found[:3]}) == 1
    assert [each.ideal_s[0] for each in found] == [0.2, 0.1, 0.05, 0.125], "the first in a configuration is as it was"
    assert found[3].steps["step_time_s"][100] == 0.125 and found[3].steps["pause_s"].sum() == 3.0
    assert (found[0].elapsed_s != slow.elapsed_s).sum() == 0, "and so is the wall clock"


def test_a_track_survives_its_file_which_is_the_same_every_time(tmp_path) -> None:
    one = trace("cbs-pessimistic", 7)
    first = one.write(tmp_path).read_bytes()
    again = RunTrace.read(tmp_path / "cbs-pessimistic-7.csv.gz")
    assert (again.variant, again.seed) == ("cbs-pessimistic", 7) and again.write(tmp_path).read_bytes() == first
    assert again.clock_s == pytest.approx(one.clock_s)
    (tmp_path / "static-8-0.csv.gz").write_bytes(first[:50])
    with pytest.raises(InputError, match="is not a record of a run"):
        RunTrace.read(tmp_path / "static-8-0.csv.gz")


def test_a_ledger_becomes_a_track() -> None:
    step = {"event": "step", "step": 0, "samples": [0, 8], "configuration": PIPE, "global_batch": 8, "loss": 5.0, "noise_scale": None}
    lines = [
        {"event": "started", "step": 0},
        {**step, "step_time_s": 0.5, "elapsed_s": 0.6},
        {"event": "changed", "step": 1, "seconds": {"stage": 0.25, "load": 0.5}},
        {**step, "step": 1, "samples": [8, 24], "global_batch": 16, "step_time_s": 1.0, "elapsed_s": 2.5},
    ]
    one = RunTrace.of("goodput", 0, lines)
    assert one.samples.tolist() == [8, 24] and one.clock_s.tolist() == [0.5, 2.25] and one.commands == {"reconfigures": 0, "scale_bs": 1}


def test_gains_are_over_the_best_other_at_each_target_seed_by_seed() -> None:
    ours, one, other = np.array([[8.0, 30.0], [9.0, 33.0]]), np.array([[10.0, 50.0], [10.0, 50.0]]), np.array([[20.0, 40.0], [20.0, 30.0]])
    found = gains(ours, {"one": one, "other": other})
    assert found.rivals == ("one", "other")
    assert found.by_seed == pytest.approx(np.array([[0.2, 0.25], [0.1, -0.1]]))
    assert found.mean == pytest.approx(0.1125)
    assert gains(np.array([[np.inf]]), {"one": np.array([[1.0]])}).mean == -1


def test_the_interval_of_a_gain_is_student_s_over_seeds() -> None:
    ours, other = np.array([[8.0], [9.0], [9.5]]), np.array([[10.0], [10.0], [10.0]])
    low, high = gains(ours, {"other": other}).interval
    half = 4.3027 * np.std([0.2, 0.1, 0.05], ddof=1) / np.sqrt(3)  # 97.5% quantile of Student's t with two degrees of freedom
    assert (low, high) == pytest.approx((0.35 / 3 - half, 0.35 / 3 + half), rel=1e-4)
    assert gains(ours[:1], {"other": other[:1]}).interval == pytest.approx((0.2, 0.2))


def test_only_seeds_that_all_variants_have_are_compared() -> None:
    whole = compared()
    partial = GoodputComparison([*whole.traces, trace("goodput", 99)], TARGETS, 100)
    assert partial.seeds == 4 and partial.figures == whole.figures
    assert whole.figures["time_to_loss_gain_low"] <= whole.figures["time_to_loss_gain_mean"] <= whole.figures["time_to_loss_gain_high"]
    assert whole.figures["reconfigures"] == 1


def test_a_layout_is_what_no_batch_size_changes() -> None:
    assert layout_of("dp2_tp1_pp2_z1_mbs4_mc2") == "dp2_tp1_pp2_z1_mc2"


def test_a_table_says_how_much_its_best_layout_changes(table) -> None:  # noqa: F811
    fastest = {key: row.samples_per_s for key, row in table.fastest().items()}
    best = {batch: max(rate for (_, at), rate in fastest.items() if at == batch) for batch in table.batches}
    winners = {strategy for (strategy, batch), rate in fastest.items() if rate == best[batch]}
    lost = [1 - fastest[strategy, batch] / best[batch] for strategy in winners for batch in table.batches if (strategy, batch) in fastest]
    assert largest_change(table) == pytest.approx(max(lost)) and max(lost) > 0


def test_variants_begin_where_the_paper_has_them(table) -> None:  # noqa: F811
    chosen = {each.name: each for each in variants(table, 8, 64)}
    assert chosen["goodput"].begins == chosen["cbs-pessimistic"].begins == chosen["static-8"].begins
    assert chosen["cbs-pessimistic"].begins.pp == 2
    assert (chosen["cbs-optimistic"].begins.dp, chosen["cbs-optimistic"].begins.global_batch) == (2, 8)
    assert [each.begins.global_batch for name, each in chosen.items() if name.startswith("static")] == [8, 16, 32, 64]


def test_the_page_is_made_of_the_records_alone(tmp_path, table, monkeypatch) -> None:  # noqa: F811
    monkeypatch.setattr(page, "TARGETS", TARGETS)
    (tmp_path / "runs").mkdir()
    table.write(tmp_path / "table")
    for each in compared().traces:
        each.write(tmp_path / "runs")
    (tmp_path / "runs" / "origins.json").write_text(
        json.dumps({"goodput-0": {"command": "`oppa train`", "date": "2026-01-01", "oppa": "1"}})
    )
    text = written_page(tmp_path, page.page(tmp_path)).read_text()
    assert "| gain" in text and hash_of((tmp_path / "runs").glob("*.csv.gz")) in text
    record = page.to_json(page.comparison_of(tmp_path), tmp_path)
    assert record["runs"] == 12 and record["seeds"] == 4 and record["time_to_loss_gain_mean"] > 0.3
    for name in ("trajectory", "loss-time", "loss-samples", "decomposition", "relative"):
        assert (tmp_path / f"{name}.svg").read_text().startswith("<")


def test_the_command_tells_the_headlines_as_json(tmp_path, table) -> None:  # noqa: F811
    (tmp_path / "runs").mkdir()
    table.write(tmp_path / "table")
    for each in compared().traces:
        each.write(tmp_path / "runs")
    (tmp_path / "runs" / "origins.json").write_text(json.dumps({"goodput-0": {"command": "oppa train", "date": "2026-01-01", "oppa": "1"}}))
    record = json.loads(Oppa(catalog.root())("bench", "goodput", "--json", "--out", tmp_path).stdout)
    assert record["time_to_loss_gain_low"] <= record["time_to_loss_gain_mean"] <= record["time_to_loss_gain_high"]
    assert (record["reconfigures"], record["scale_bs"]) == (1, 0) and record["raw_log_sha256"] == hash_of(
        (tmp_path / "runs").glob("*.csv.gz")
    )
    assert record["origin"]["command"] == "oppa train" and record["versions"] == ["1"]


def test_every_row_has_every_cell() -> None:
    whole = compared()
    for section in (time_section(whole, "clock_s", "a"), time_section(whole, "elapsed_s", "b"), seed_section(whole), change_section(whole)):
        assert section.rows and all(len(row) == len(section.columns) for row in section.rows)


def test_changes_stand_next_to_what_a_restart_would_have_taken(tmp_path) -> None:
    whole = compared(seeds=2)
    (one, _) = changes_of(whole)
    assert (one.before, one.after, one.seconds) == ((PIPE, 10), (DATA, 10), 1.0)
    assert one.words == "dp1_tp1_pp4_z0 → dp4_tp1_pp1_z0" and one.start_s == pytest.approx(100 * 0.05)
    assert restarts.recorded(tmp_path) == {}
    (tmp_path / restarts.RECORD).write_text(json.dumps({"cold_s": {one.words: [7.0, 9.0, 8.0]}}))
    section = change_section(whole, restarts.recorded(tmp_path))
    assert section.columns[-1] == ">by a restart, ms" and [row[-2:] for row in section.rows] == [["1000", "8000"]] * 2


def test_without_records_the_error_states_how_to_make_them(tmp_path) -> None:
    with pytest.raises(InputError, match="no record of a run"):
        page.comparison_of(tmp_path)


def test_configurations_are_known_by_their_ids() -> None:
    assert layout_of(Configuration(dp=1, pp=4, global_batch=8, micro_batch=2).id) == layout_of(PIPE)


LACKING = "; ".join(netlab_lacking())
needs_hosts = pytest.mark.skipif(bool(LACKING), reason=f"hosts cannot be emulated here: {LACKING}")
HOSTS = ("--hosts", "2", "--bandwidth", "1gbit", "--latency", "1ms")
RUN = f"""
import sys
from pathlib import Path
from experiments.lib.recorder import Recorder
log = Path(sys.argv[1])
Recorder(job=Path(), folder=log.parent, work=log.parent, hosts={HOSTS}, tell=print)._oppa(["bench", "machine"], log)
"""


@pytest.mark.slow
@needs_hosts
def test_a_command_that_fails_is_reported_with_its_last_words(tmp_path) -> None:
    recorder = Recorder(job=Path(), folder=tmp_path, work=tmp_path, hosts=HOSTS, tell=print)
    with pytest.raises(EnvironmentLackingError, match=r"-- oppa show nothing` failed: it exited with code 2") as raised:
        recorder._oppa(["show", "nothing"], tmp_path / "log")
    assert "nothing" in (raised.value.hint or "")


@pytest.mark.slow
@needs_hosts
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_run_when_the_benchmark_is_ended(number, tmp_path) -> None:
    bench = subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path / "log")])
    while not (running := [each for each in processes.descendants(bench.pid) if "machine" in command_of(each.pid)]):
        assert bench.poll() is None
        time.sleep(0.05)
    bench.send_signal(number)
    assert bench.wait() == -number
    assert_gone(running)
