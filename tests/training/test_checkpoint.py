"""A checkpoint is whole or not there, is read bit by bit in any layout, and is refused where it is not what was written."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppa.errors import CheckpointError
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.training.checkpoint.manifest import MANIFEST, Manifest
from oppa.training.checkpoint.storage import begin, draft_of, seal, share_of, write_share
from oppa.training.reshard.exchange import State
from oppa.training.reshard.shards import layout_of
from tests.training.checkpoints import SQUARE, resumed, saved
from tests.training.layouts import configurations, cut, same, small_models, some_of, whole_state

MODELS = small_models(4)
ALONE = Configuration(dp=1, global_batch=1, micro_batch=1)


def whole(states: list[State], model: Model, configuration: Configuration) -> bool:
    return all(same(state, cut(whole_state(model), shards)) for state, shards in zip(states, layout_of(model, configuration), strict=True))


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["some", "all"])
@pytest.mark.parametrize("family", [name if name == "tied" else pytest.param(name, marks=pytest.mark.slow) for name in MODELS])
def test_what_any_layout_saves_every_layout_reads(family: str, every: bool, tmp_path: Path) -> None:
    model = MODELS[family]
    for number, configuration in enumerate(some_of(configurations(model, 4), every=every)):
        folder = saved(tmp_path / str(number), model, configuration)
        assert whole(resumed(folder, model, ALONE), model, ALONE), configuration.id
    for devices in (2, 4, 8):
        for configuration in some_of(configurations(model, devices), every=every):
            for source in (0, number) if every or devices == 4 else (number,):
                assert whole(resumed(tmp_path / str(source), model, configuration), model, configuration), configuration.id


def test_each_element_is_written_once_and_about_as_much_by_each_rank() -> None:
    layout = layout_of(MODELS["tied"], dataclasses.replace(SQUARE, zero_stage=0))
    shares = [set(share_of(layout, rank)) for rank in range(4)]
    assert not any(one & other for one in shares for other in shares if one is not other)
    sizes = [sum(len(box[0]) * (len(box[1]) if len(box) > 1 else 1) for _, box in share) for share in shares]
    assert max(sizes) < 1.5 * min(sizes)


def test_it_tells_what_the_trainer_noted(tmp_path: Path) -> None:
    manifest = Manifest.read(saved(tmp_path / "step-7", MODELS["tied"], SQUARE))
    assert (manifest.steps, manifest.notes) == (7, {"samples": 448})


def test_nothing_but_safetensors_and_json(tmp_path: Path) -> None:
    names = {path.name for path in saved(tmp_path / "step-7", MODELS["tied"], SQUARE).iterdir()}
    assert names == {MANIFEST, *(f"rank-000{rank}.safetensors" for rank in range(4))}
    assert [path.name for path in tmp_path.iterdir()] == ["step-7"]


def test_one_that_was_not_finished_is_not_there_and_does_not_stand_in_the_way(tmp_path: Path) -> None:
    folder, layout = tmp_path / "step-7", layout_of(MODELS["tied"], SQUARE)
    begin(folder)
    write_share(folder, cut(whole_state(MODELS["tied"], seed=1), layout[0]), layout, 0)
    assert not folder.exists() and draft_of(folder).exists()
    with pytest.raises(FileNotFoundError):
        seal(folder, MODELS["tied"], steps=7, notes={}, ranks=4)
    assert whole(resumed(saved(folder, MODELS["tied"], SQUARE), MODELS["tied"], ALONE), MODELS["tied"], ALONE)
    assert not draft_of(folder).exists()


def test_one_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-7", MODELS["tied"], SQUARE)
    with pytest.raises(CheckpointError, match="exists already"):
        saved(folder, MODELS["tied"], ALONE)


def test_one_whose_manifest_is_too_long_to_be_read_is_not_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = saved(tmp_path / "step-6", MODELS["tied"], SQUARE)
    for module in ("manifest", "storage"):
        monkeypatch.setattr(f"oppa.training.checkpoint.{module}.MOST_BYTES", (small / MANIFEST).stat().st_size)
    assert Manifest.read(saved(tmp_path / "step-7", MODELS["tied"], SQUARE)).pieces
    with pytest.raises(CheckpointError, match="pieces") as refusal:
        saved(tmp_path / "step-8", MODELS["tied"], dataclasses.replace(SQUARE, dp=4))
    assert "dp_shard" in refusal.value.hint and not (tmp_path / "step-8").exists()


@pytest.mark.parametrize("change", [{"hidden": 16}, {"layers": 8}, {"heads": 2}, {"vocab": 13}, {"tied": False}, {"gated": False}])
def test_another_model_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-7", MODELS["tied"], SQUARE)
    with pytest.raises(CheckpointError, match=next(iter(change))) as refusal:
        resumed(folder, dataclasses.replace(MODELS["tied"], **change), ALONE)  # type: ignore[arg-type]
    assert refusal.value.hint


@pytest.mark.parametrize("name", [MANIFEST, "rank-0002.safetensors"])
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.999])
def test_one_that_is_cut_short_is_refused(name: str, kept: float, tmp_path: Path) -> None:
    path = saved(tmp_path / "step-7", MODELS["tied"], SQUARE) / name
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(CheckpointError, match=name) as refusal:
        resumed(path.parent, MODELS["tied"], ALONE)
    assert refusal.value.hint


def test_one_that_lacks_something_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-7", MODELS["tied"], SQUARE)
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        Manifest.read(tmp_path)
    (folder / "rank-0001.safetensors").unlink()
    with pytest.raises(CheckpointError, match="missing"):
        Manifest.read(folder)


def test_one_of_another_version_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "step-7", MODELS["tied"], SQUARE) / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with pytest.raises(CheckpointError, match="format 2"):
        Manifest.read(path.parent)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("good") / "step-7", MODELS["tied"], SQUARE)


@pytest.mark.slow
@given(st.data())
def test_a_byte_that_changed_is_never_read_as_another_state(good: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(good.iterdir())))
    content = bytearray(path.read_bytes())
    place, flip = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(1, 255))
    content[place] ^= flip
    intact = path.read_bytes()
    path.write_bytes(content)
    try:
        assert whole(resumed(good, MODELS["tied"], ALONE), MODELS["tied"], ALONE)
    except CheckpointError:
        pass
    finally:
        path.write_bytes(intact)
