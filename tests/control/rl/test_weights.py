"""A learned policy as a file."""

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from oppa.control.rl.actions import Actions
from oppa.control.rl.learner import module_of
from oppa.control.rl.observation import NAMES, observations
from oppa.control.rl.weights import Weights
from oppa.errors import InputError
from tests.control.rl.conftest import state
from tests.control.services import worker


def test_what_is_written_comes_back_the_same(weights, tmp_path) -> None:
    weights.save(tmp_path / "policy.safetensors")
    found = Weights.load(tmp_path / "policy.safetensors")
    seen = observations(state(), weights.actions)
    assert (found.preferences(seen) == weights.preferences(seen)).all() and found.best(seen) == weights.best(seen)
    assert (found.actions, found.reward, found.window) == (weights.actions, weights.reward, 20)
    assert found.provenance == weights.provenance
    assert [path.name for path in tmp_path.iterdir()] == ["policy.safetensors"], "no draft is left"


def test_the_file_is_the_network_that_has_learned(weights) -> None:
    import torch

    seen = observations(state(), weights.actions)
    with torch.no_grad():
        theirs = module_of(weights.layers)(torch.from_numpy(np.clip(seen, -5, 5))).numpy()
    assert weights.preferences(seen) == pytest.approx(theirs)
    assert weights.probabilities(seen).sum(1) == pytest.approx(1.0)


def damaged(path, change) -> None:
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        notes = json.loads(file.metadata()["oppa"])
    arrays = load_file(path)
    change(arrays, notes)
    save_file(arrays, path, {"oppa": json.dumps(notes)})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda arrays, notes: notes.update(version=99), "not a policy of this version"),
        (lambda arrays, notes: notes.update(observation=["mood"]), "not a policy of this version"),
        (lambda arrays, notes: notes.pop("window"), "damaged"),
        (lambda arrays, notes: notes.update(window=0), "damaged"),
        (lambda arrays, notes: notes["actions"].update(least=0), "least = 0"),
        (lambda arrays, notes: notes["reward"].update(mood=1), "damaged"),
        (lambda arrays, notes: arrays.pop("layers.1.bias"), "damaged"),
        (lambda arrays, notes: arrays.update({"layers.0.weight": np.zeros((64, 3))}), "damaged"),
        (lambda arrays, notes: arrays.update({"layers.0.bias": np.full(64, np.nan)}), "damaged"),
        (lambda arrays, notes: arrays.update({"observation.deviation": np.zeros(len(NAMES))}), "damaged"),
    ],
)
def test_a_damaged_file_is_refused(change, said, weights, tmp_path) -> None:
    weights.save(tmp_path / "policy.safetensors")
    damaged(tmp_path / "policy.safetensors", change)
    with pytest.raises(InputError, match=said):
        Weights.load(tmp_path / "policy.safetensors")


@pytest.mark.parametrize("content", [b"", b"{}", b"\x00" * 64, None])
def test_what_is_no_such_file_is_refused(content, tmp_path) -> None:
    path = tmp_path / "policy.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read"):
        Weights.load(path)


def test_every_metric_of_the_paper_is_seen() -> None:
    """A change of any of them changes the observation, where it should and nowhere else."""
    base = observations(state(losses=(2.0, 1.0), accuracy=0.4), Actions())
    assert base.shape == (2, len(NAMES)) and np.isfinite(base).all()
    own = {
        "throughput_bytes_per_s": {"throughput"},
        "retransmissions": {"retransmissions"},
        "cpu_ratio": {"cpu_ratio"},
        "memory_share": {"memory_share"},
        "accuracy": {"accuracy"},
        "accuracy_deviation": {"accuracy_deviation"},
        "accuracy_gain": {"accuracy_gain"},
    }
    for field, names in own.items():
        first = worker(accuracy_gain=2.0)
        changed = dataclasses.replace(first, **{field: getattr(first, field) + 1})
        found = observations(state(losses=(2.0, 1.0), accuracy=0.4, workers=(changed, worker(local_batch=64))), Actions())
        assert {name for name, differs in zip(NAMES, found[0] != base[0], strict=True) if differs} == names
        assert (found[1] == base[1]).all()
    shared = {"losses": (1.0, 2.0)}, {"accuracy": 0.9}, {"variance_ratio": 100.0}
    for change, names in zip(shared, ({"loss_trend"}, {"validation_accuracy"}, {"gradient_variance", "gradient_deviation"}), strict=True):
        found = observations(state(**{"losses": (2.0, 1.0), "accuracy": 0.4, **change}), Actions())
        for row in (0, 1):
            assert {name for name, differs in zip(NAMES, found[row] != base[row], strict=True) if differs} == names


def test_nothing_known_is_no_reason_to_fail() -> None:
    empty = worker(compute_s=0.0, wait_s=0.0, throughput_bytes_per_s=0.0)
    found = observations(state(workers=(empty, empty), variance_ratio=None), Actions())
    assert np.isfinite(found).all()
