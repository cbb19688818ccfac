"""A checkpoint that is not what was written is refused with its reason, even if its checksum was computed anew; nothing else is read."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from oppa.errors import CheckpointError
from oppa.problem.configuration import Configuration
from oppa.training.checkpoint.manifest import MANIFEST, Manifest, _digest
from oppa.training.checkpoint.storage import load, sha256_of
from oppa.training.reshard.shards import layout_of
from oppa.training.run.notes import RunNotes
from oppa.training.statistics.noise_scale import NoiseScale
from tests.hostile.damage import REPLACED, edits, flipped, said
from tests.training.checkpoints import SQUARE, resumed, saved
from tests.training.layouts import cut, empty, same, small_models, whole_state

MODEL = small_models(4)["tied"]
ALONE = Configuration(dp=1, global_batch=1, micro_batch=1)
FILE = "rank-0001.safetensors"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("good") / "step-7", MODEL, SQUARE)


@pytest.fixture
def copy(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "step-7"))


def reads(folder: Path) -> None:
    """Loading it gives what was saved, or an error."""
    (state,) = resumed(folder, MODEL, ALONE)
    assert same(state, cut(whole_state(MODEL), layout_of(MODEL, ALONE)[0])), "another state was loaded without a word"


def edited(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest, and compute its checksum anew."""
    values = json.loads((folder / MANIFEST).read_text())
    change(values["checkpoint"])
    sealed(folder, values["checkpoint"])


def sealed(folder: Path, body: dict[str, Any]) -> None:
    (folder / MANIFEST).write_text(json.dumps({"version": 1, "sha256": _digest(body), "checkpoint": body}))


def renamed(body: dict[str, Any], name: str) -> None:
    body["files"][name] = body["files"].pop(FILE)
    for piece in body["pieces"]:
        piece["file"] = name if piece["file"] == FILE else piece["file"]


@pytest.mark.parametrize(
    "name", ["../outside", "../../outside", "/{folder}/outside", "sub/../{file}", "./{file}", "a\0b", "", ".", "..", "x" * 5000]
)
def test_a_checkpoint_names_only_its_own_files(name: str, copy: Path) -> None:
    shutil.copy(copy / FILE, copy.parent / "outside")
    edited(copy, lambda body: renamed(body, name.format(folder=copy.parent, file=FILE)))
    with pytest.raises(CheckpointError, match="is not a file of a checkpoint") as refusal:
        Manifest.read(copy)
    assert refusal.value.hint


@pytest.mark.parametrize("name", [FILE, MANIFEST])
def test_a_link_to_another_file_is_refused(name: str, copy: Path) -> None:
    (copy / name).rename(copy.parent / "outside")
    (copy / name).symlink_to(copy.parent / "outside")
    assert name in said(lambda: reads(copy))


@pytest.mark.parametrize("replace", REPLACED)
@pytest.mark.parametrize("name", [FILE, MANIFEST])
def test_what_stands_in_place_of_a_file_is_refused(name: str, replace: Callable[[Path], None], copy: Path) -> None:
    replace(copy / name)
    assert name in said(lambda: reads(copy))


@pytest.mark.parametrize("name", [FILE, "rank-0003.safetensors", MANIFEST])
def test_a_flipped_bit_is_refused_or_does_not_matter(name: str, copy: Path) -> None:
    whole = (copy / name).read_bytes()
    for damaged in flipped(whole, 60):
        (copy / name).write_bytes(damaged)
        said(lambda: reads(copy))
    (copy / name).write_bytes(whole)
    reads(copy)


@pytest.mark.slow
def test_no_field_of_the_manifest_has_another_type(copy: Path) -> None:
    """The checksum is right each time."""
    body = json.loads((copy / MANIFEST).read_text())["checkpoint"]
    for _ in edits(body):
        sealed(copy, body)
        said(lambda: reads(copy))


HEADERS: dict[str, Callable[[dict[str, Any], str], None]] = {
    "beyond the file": lambda header, name: header[name].update(data_offsets=[0, 1 << 40]),
    "backwards": lambda header, name: header[name].update(data_offsets=[8, 0]),
    "negative": lambda header, name: header[name].update(data_offsets=[-8, 8]),
    "overlapping": lambda header, name: header[name].update(data_offsets=header[list(header)[-1]]["data_offsets"]),
    "a negative shape": lambda header, name: header[name].update(shape=[-1, 8]),
    "a huge shape": lambda header, name: header[name].update(shape=[2**63, 2**63]),
    "a huge shape that wraps": lambda header, name: header[name].update(shape=[2**32, 2**32, 4]),
    "another shape": lambda header, name: header[name].update(shape=list(reversed(header[name]["shape"]))),
    "no shape": lambda header, name: header[name].update(shape=[]),
    "another type of that size": lambda header, name: header[name].update(dtype="I32"),
    "another type": lambda header, name: header[name].update(dtype="F64"),
    "an unknown type": lambda header, name: header[name].update(dtype="F3"),
    "a type of half bytes": lambda header, name: header[name].update(dtype="F4"),
    "complex numbers": lambda header, name: header[name].update(dtype="C64"),
    "no such tensor": lambda header, name: header.update(other=header.pop(name)),
    "a text": lambda header, name: header.update({name: "x"}),
    "metadata of another kind": lambda header, name: header.update(__metadata__=[1]),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_a_header_that_lies_is_refused(kind: str, copy: Path) -> None:
    """The manifest agrees about the size of the file."""
    body = (copy / FILE).read_bytes()
    length = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + length])
    name = next(each for each in header if each != "__metadata__" and len(header[each]["shape"]) == 2)
    HEADERS[kind](header, name)
    text = json.dumps(header).encode()
    (copy / FILE).write_bytes(len(text).to_bytes(8, "little") + text + body[8 + length :])
    edited(copy, lambda values: values["files"].update({FILE: (copy / FILE).stat().st_size}))
    assert FILE in said(lambda: reads(copy))


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**63, 2**64 - 1])
def test_a_header_of_another_length_is_refused(length: int, copy: Path) -> None:
    body = (copy / FILE).read_bytes()
    (copy / FILE).write_bytes(length.to_bytes(8, "little") + body[8:])
    assert FILE in said(lambda: reads(copy))


def test_a_name_that_comes_twice_is_refused(copy: Path) -> None:
    body = (copy / FILE).read_bytes()
    length = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + length])
    (first, second) = [each for each in header if each != "__metadata__"][:2]
    text = body[8 : 8 + length].replace(json.dumps(second).encode(), json.dumps(first).encode())
    (copy / FILE).write_bytes(len(text).to_bytes(8, "little") + text + body[8 + length :])
    edited(copy, lambda values: values["files"].update({FILE: (copy / FILE).stat().st_size}))
    assert FILE in said(lambda: reads(copy))


def test_pieces_that_overlap_cannot_hide_one_that_is_missing(copy: Path) -> None:
    def twice(body: dict[str, Any]) -> None:
        by_key: dict[str, list[int]] = {}
        for number, piece in enumerate(body["pieces"]):
            by_key.setdefault(f"{piece['key']} {[stop - start for start, stop in piece['box']]}", []).append(number)
        one, other = next(numbers for numbers in by_key.values() if len(numbers) > 1)[:2]
        body["pieces"][other] = body["pieces"][one]

    edited(copy, twice)
    assert "overlap" in said(lambda: reads(copy))


def test_tensors_of_another_type_are_refused_even_if_the_manifest_agrees(copy: Path) -> None:
    tensors = {name: tensor.to(torch.float64) for name, tensor in load_file(copy / FILE).items()}
    save_file(tensors, copy / FILE)

    def agree(body: dict[str, Any]) -> None:
        body["files"][FILE] = (copy / FILE).stat().st_size
        for piece in (each for each in map(dict.copy, body["pieces"]) if each["file"] == FILE):
            name = f"{piece['key'][0]}/{piece['key'][1]}[{','.join(f'{start}:{stop}' for start, stop in piece['box'])}]"
            at = body["pieces"].index(piece)
            body["pieces"][at] = {**piece, "dtype": "float64", "sha256": sha256_of(tensors[name])}

    edited(copy, agree)
    assert "has the type float64" in said(lambda: reads(copy))


def notes() -> dict[str, Any]:
    followed = {"batch": 4.0, "since": 0}
    counts = {"step": 1, "samples": 4, "elapsed_s": 1.0, "reference_batch": 4, "local_batches": [2, 2], "data": {"seed": 0}}
    return {**counts, "configuration": SQUARE.to_dict(), "followed": followed, "noise_scale": dataclasses.asdict(NoiseScale())}


@pytest.mark.slow
def test_notes_of_another_kind_are_refused(copy: Path) -> None:
    def noted(values: dict[str, Any]) -> None:
        edited(copy, lambda body: body.update(notes=values))

    noted(notes())
    assert RunNotes.read(copy).to_dict() == {**notes(), "local_batches": (2, 2)}
    values = notes()
    for _ in edits(values):
        noted(values)
        said(lambda: RunNotes.read(copy))


def test_a_checkpoint_that_vanishes_is_an_error(copy: Path) -> None:
    manifest = Manifest.read(copy)
    (copy / FILE).unlink()
    assert FILE in said(lambda: load(copy, manifest, empty(layout_of(MODEL, ALONE)[0])))
