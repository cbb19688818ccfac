"""The short benchmark of continuous integration: what counts as a regression."""

import dataclasses
import json

import pytest

from oppa.bench.ci import Score, changes, ci_inputs, read_reference, record, sections
from oppa.errors import EnvironmentLackingError, InputError


def scores(seconds: float = 100.0, best: float = 0.98, seeds: int = 8) -> list[Score]:
    return [Score(suite="cpu", task="cpu", designer="oppa", seed=seed, seconds=seconds, best=best) for seed in range(seeds)]


def test_the_same_scores_are_no_regression() -> None:
    (change,) = changes(scores(), scores())
    assert not change.regressed and change.slower == change.worse == 0 and change.plays == 8


def test_twice_the_seconds_are_one() -> None:
    (change,) = changes(scores(seconds=200), scores())
    assert change.regressed and change.slower == pytest.approx(0.693, abs=1e-3)
    assert not changes(scores(seconds=50), scores())[0].regressed


def test_a_worse_incumbent_is_one() -> None:
    assert changes(scores(best=0.90), scores())[0].regressed
    assert not changes(scores(best=1.0), scores())[0].regressed


def test_little_is_tolerated() -> None:
    assert not changes(scores(seconds=108, best=0.972), scores())[0].regressed


def test_what_noise_explains_is_none() -> None:
    noisy = [dataclasses.replace(score, seconds=score.seconds * (4 if score.seed % 2 else 0.5)) for score in scores()]
    (change,) = changes(noisy, scores())
    assert change.slower > 0.3 and not change.regressed


def test_other_plays_are_refused() -> None:
    with pytest.raises(InputError, match="lacks 2 of 10 runs"):
        changes(scores(seeds=10), scores())


def test_a_reference_is_read_as_it_was_recorded(tmp_path) -> None:
    path = record(scores(), tmp_path / "ci" / "reference.json")
    assert read_reference(path) == scores()
    assert sections(changes(scores(), read_reference(path)))[0].rows[0][:2] == ("oppa", "8")


def test_a_reference_of_other_tasks_is_refused(tmp_path) -> None:
    path, now = record(scores(), tmp_path / "reference.json"), ci_inputs()
    assert read_reference(path, inputs=now) == scores()
    for other in (ci_inputs(["cpu"]), dataclasses.replace(now, files={**now.files, "examples/cpu.toml": "0"})):
        with pytest.raises(InputError, match=r"is a reference for other tasks: .*(task moe|examples/cpu\.toml)"):
            read_reference(path, inputs=other)
    path.write_text(json.dumps({"scores": []}))
    with pytest.raises(InputError, match="it has no digest of its tasks"):
        read_reference(path, inputs=now)


def test_a_reference_that_is_none_is_named(tmp_path) -> None:
    with pytest.raises(EnvironmentLackingError, match="does not exist"):
        read_reference(tmp_path / "reference.json")
    (tmp_path / "reference.json").write_text('{"scores": [{"suite": "cpu"}]}')
    with pytest.raises(InputError, match="is not a reference"):
        read_reference(tmp_path / "reference.json")
