"""`oppa explain` as a user meets it: a constraint, a failure, or a distance to the best."""

import json

import pytest

from oppa.cli.views import style


def test_what_is_not_valid_names_its_constraint_and_what_would_be(oppa) -> None:
    said = oppa("explain", "job.toml", "dp=2,tp=2").stdout
    assert "every device runs one rank" in said and "dp * tp * pp == devices" in said
    assert "dp = 2, pp = 1 or 2, tp = 2" in said and "valid with one of these changes\n  dp = 1\n  tp = 1" in said


def test_without_a_study_the_prior_speaks(oppa) -> None:
    said = oppa("explain", "job.toml", "tp=2,micro_batch=4").stdout
    assert said.startswith("dp1_tp2_pp1_z0_mbs4   the only configuration with tp=2,micro_batch=4\n")
    assert "it is expected to have 0." in said and "steps/s predicted\n" in said
    assert "likely" in said and "tried" not in said and "measured" not in said


@pytest.mark.slow
def test_what_was_tried_is_compared_with_the_best_repeats_with_repeats(oppa, measured) -> None:
    said = oppa("explain", measured, "dp2_tp1_pp1_z0_mbs2").stdout
    assert "it has 0.70 times the throughput of the best" in said
    assert "trial 2, completed: 70.0 ± 0.7 steps/s, peak 64 MiB; 70.0 steps/s in 3 repeats" in said
    assert "70.0 steps/s [50.4 - 97.3] predicted: the measurement lies within" in said
    assert "best       dp2_tp1_pp1_z0_mbs4, 100 steps/s measured" in said


def test_a_long_row_goes_on_below_its_value(oppa, measured, monkeypatch) -> None:
    monkeypatch.setattr(style, "PIPE_WIDTH", 60)
    said = oppa("explain", measured, "dp=1,pp=2").stdout
    rows = said[said.index("tried") : said.index("memory of")].rstrip().splitlines()
    assert len(rows) > 5 and all(row[9:11] == "  " and len(row) <= 60 and row == row.rstrip() for row in rows)


def test_what_failed_says_how_and_where_its_logs_are(oppa, measured) -> None:
    said = oppa("explain", "job.toml", "dp2_tp1_pp1_z0_mbs8", "--study", measured).stdout
    assert "it was tried, and ended: out of memory" in said
    assert "trial 4, out of memory, rank 1: needs 167772160 bytes" in said and "s/trials/0004_dp2_tp1_pp1_z0_mbs8" in said


def test_what_was_never_tried_is_predicted_from_what_was(oppa, measured) -> None:
    said = oppa("explain", measured, "dp=1,pp=2").stdout
    assert "the best predicted of 4 with dp=1,pp=2" in said and "tried      never" in said
    assert "faster than the best: " in said and "usable; fits: " in said


@pytest.mark.slow
def test_the_best_is_named_as_such(oppa, measured) -> None:
    assert "it is the best measured configuration" in oppa("explain", measured, "dp=2,micro_batch=4,zero_stage=0").stdout


def test_bad_input_is_an_error_with_a_hint(oppa, measured) -> None:
    job = oppa.folder / "job.toml"
    (oppa.folder / "other.toml").write_text(job.read_text().replace("global_batch = 16", "global_batch = 8"))
    for arguments, words in (
        (("job.toml", "ddp=2"), "did you mean `dp`?"),
        (("job.toml", "dp=3"), "use one of 1, 2"),
        (("job.toml", "fastest"), "`fastest` is not a configuration"),
        (("nowhere", "dp=2"), "nowhere"),
        (("other.toml", "dp=2", "--study", measured), "is the study of another problem"),
        (("job.toml",), "add one: `oppa explain job.toml dp=2,tp=1`"),
        (("dp=2", "--study", measured, "--", "torchrun", "train.py"), f"give only the study: `oppa explain {measured} ...`"),
    ):
        said = oppa("explain", *arguments, code=2).stderr
        assert words in said and "Traceback" not in said


def test_memory_and_time_are_divided_and_the_framework_is_named(oppa) -> None:
    said = oppa("explain", "job.toml", "tp=2,micro_batch=4").stdout
    assert "framework  the built-in core: autocast, DDP and FSDP2 (priors/frameworks/torch.toml), in fp32" in said
    memory, time = said[said.index("memory of the ") :].split("step time")
    assert "weights" in memory and "communicators and fixed" in memory and "predicted  share" in memory
    assert "matrix products of the layers" in time and "tensor-parallel operations" in time and "all " in time


@pytest.mark.slow
def test_a_measurement_names_the_coefficient_to_change(oppa, measured) -> None:
    said = oppa("explain", measured, "dp2_tp1_pp1_z0_mbs2").stdout
    memory, time = said[said.index("memory of the ") :].split("step time")
    assert "64 MiB" in memory and "measured" in memory and "measured" in time
    assert "times the measurement." in said


@pytest.mark.slow
def test_json_has_all_of_it(oppa, measured) -> None:
    found = json.loads(oppa("explain", measured, "dp2_tp1_pp1_z0_mbs2", "--json").stdout)
    assert found["valid"] and found["tried"]["id"] == 2 and found["framework"]["name"] == "torch"
    assert sum(found["memory"]["parts_bytes"].values()) == pytest.approx(found["memory"]["predicted_bytes"])
    assert sum(found["time"]["parts_s"].values()) == pytest.approx(found["time"]["predicted_s"])
    assert found["time"]["measured_s"] == pytest.approx(1 / found["value"])
    assert found["memory"]["measured_bytes"] == 2**26 and found["best"]["measured"]
    full = json.loads(oppa("explain", measured, "dp2_tp1_pp1_z0_mbs8", "--json").stdout)
    assert full["memory"]["measured_at_least"] and full["memory"]["measured_bytes"] == full["usable_bytes"]


def test_json_of_an_invalid_configuration_has_the_constraints(oppa) -> None:
    found = json.loads(oppa("explain", "job.toml", "dp=2,tp=2", "--json").stdout)
    assert not found["valid"] and found["violations"][0]["rule"] == "dp * tp * pp == devices"
    assert found["alternatives"] == {"dp": [1], "tp": [1]}
