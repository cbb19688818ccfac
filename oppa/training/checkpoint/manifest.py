"""Read and write the manifest of a checkpoint, `manifest.json`, with checks that it and the listed files are intact."""

import dataclasses
import hashlib
import json
import operator
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from oppa.errors import CheckpointError
from oppa.problem.model import Model
from oppa.regular_file import LIMIT_BYTES, read_json
from oppa.training.model.tensor_slices import Box, common
from oppa.training.reshard.shards import TensorKey

MANIFEST, VERSION = "manifest.json", 1
MOST_BYTES = LIMIT_BYTES
"""Longest manifest that is read."""

_FILE, _MOST = re.compile(r"rank-[0-9]{4,}\.safetensors"), 1 << 48
"""Names of the files in a checkpoint, and a bound on the length of a tensor's dimension."""
_ELSEWHERE = ("name", "seq_len", "entry_point", "config")
"""Fields of a model that do not affect its weights: its name, its sequence length and the location of its code."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Describes a saved piece: a box of a whole tensor of the training state, stored in `file` under `name`."""

    key: TensorKey
    shape: tuple[int, ...]
    dtype: str
    box: Box
    file: str
    sha256: str

    @property
    def name(self) -> str:
        """Return the name in the file, for example `weight/blocks.0.feed_forward.up.weight[0:64,0:32]`."""
        return f"{self.key.kind}/{self.key.name}[{','.join(f'{indices.start}:{indices.stop}' for indices in self.box)}]"

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        box = [[indices.start, indices.stop] for indices in self.box]
        return {"key": [self.key.kind, self.key.name], "shape": list(self.shape), "box": box} | {
            name: getattr(self, name) for name in ("dtype", "file", "sha256")
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build a piece from the result of `to_dict`.

        Raises:
            KeyError, TypeError: a field is missing, unknown or of another type.
            ValueError: the box is not inside the tensor.
        """
        box = tuple(range(operator.index(start), operator.index(stop)) for start, stop in values["box"])
        shape = tuple(map(operator.index, values["shape"]))
        piece = cls(**{**values, "key": TensorKey(*map(_text, values["key"])), "shape": shape, "box": box})
        for name in ("dtype", "file", "sha256"):
            _text(getattr(piece, name))
        if not all(0 <= part.start < part.stop <= length < _MOST for part, length in zip(box, shape, strict=True)):
            raise ValueError(f"`{piece.name}` is not a part of a tensor of shape {shape}")
        return piece


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Lists the contents of a checkpoint: optimizer steps taken, the trainer's notes (JSON), bytes of each file, and disjoint pieces."""

    model: Mapping[str, Any]
    steps: int
    notes: Mapping[str, Any]
    files: Mapping[str, int]
    pieces: tuple[Saved, ...]

    def to_json(self) -> str:
        """Return the JSON text, including a checksum of the contents; it is compact, because thousands of ranks save millions of pieces."""
        body = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        body |= {"pieces": [piece.to_dict() for piece in self.pieces]}
        return json.dumps({"version": VERSION, "sha256": _digest(body), "checkpoint": body}, separators=(",", ":")) + "\n"

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of a checkpoint, and check that all files exist with their recorded sizes.

        Raises:
            CheckpointError: if there is no manifest, it was altered or has another version, or a file is missing or of another size.
        """
        try:
            values = read_json(folder / MANIFEST, limit_bytes=MOST_BYTES, links=False)
            version, expected, body = values["version"], values["sha256"], dict(values["checkpoint"])
        except FileNotFoundError:
            raise CheckpointError(
                f"`{folder}` is not a checkpoint: it has no `{MANIFEST}`", hint="name a folder that a run has saved"
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise damaged(folder / MANIFEST, str(error)) from error
        if version != VERSION:
            raise CheckpointError(
                f"`{folder}` has format {version}, but this version of oppa reads {VERSION}", hint="use the version of oppa that wrote it"
            )
        if _digest(body) != expected:
            raise damaged(folder / MANIFEST, "it was changed after it was written")
        try:
            manifest = cls(**{**body, "pieces": tuple(map(Saved.from_dict, body["pieces"]))})
            manifest._require_consistent()
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(folder / MANIFEST, f"its contents are invalid: {error}") from error
        manifest._require_files(folder)
        return manifest

    def _require_consistent(self) -> None:
        """Raise ValueError or TypeError unless the files lie in the folder, and the pieces are in them and disjoint."""
        if operator.index(self.steps) < 0:
            raise ValueError(f"`steps = {self.steps}`")
        for values in (self.model, self.notes, self.files):
            if not isinstance(values, dict):
                raise TypeError(f"`{values!r:.100}` is not an object")
        for file in {*self.files, *(piece.file for piece in self.pieces)}:
            if not _FILE.fullmatch(file) or file not in self.files:
                raise ValueError(f"`{file}` is not a file of a checkpoint")
        by_key: dict[TensorKey, list[Saved]] = {}
        for piece in self.pieces:
            by_key.setdefault(piece.key, []).append(piece)
        for pieces in by_key.values():
            _require_disjoint(pieces)

    def _require_files(self, folder: Path) -> None:
        for file, expected_bytes in self.files.items():
            found = _status(folder / file)
            if found is None:
                raise damaged(folder / file, "it is missing")
            if not stat.S_ISREG(found.st_mode):
                raise damaged(folder / file, "it is a link, or no regular file")
            if found.st_size != expected_bytes:
                raise damaged(folder / file, f"it has {found.st_size} bytes instead of {expected_bytes}")

    def require_model(self, model: Model) -> None:
        """Check that the checkpoint is of this model.

        Raises:
            CheckpointError: names the first field that differs.
        """
        for field in dataclasses.fields(model):
            saved, value = self.model.get(field.name, field.default), getattr(model, field.name)
            if field.name not in _ELSEWHERE and saved != value:
                raise CheckpointError(
                    f"the checkpoint is for another model: `{field.name} = {saved}`, not {value}",
                    hint=f"set `{field.name} = {saved}` in `[model]`, or name another checkpoint",
                )


def damaged(path: Path, why: str) -> CheckpointError:
    """Return the error for a damaged file."""
    return CheckpointError(f"`{path}` is damaged: {why}", hint="resume from another checkpoint")


def _require_disjoint(pieces: Iterable[Saved]) -> None:
    """Raise ValueError if two pieces of one tensor overlap, or have different shapes of the tensor.

    Pieces that overlap could hide that another one is missing.
    """
    earlier: list[Saved] = []
    for piece in sorted(pieces, key=lambda each: [part.start for part in each.box]):
        earlier = [each for each in earlier if not each.box or each.box[0].stop > piece.box[0].start]
        for each in earlier:
            if each.shape != piece.shape or common(each.box, piece.box) is not None:
                raise ValueError(f"`{each.name}` and `{piece.name}` overlap")
        earlier.append(piece)


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a file or a link; None if there is none."""
    try:
        return path.lstat()
    except OSError:
        return None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"`{value!r:.100}` is not a text")
    return value


def _digest(body: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest's contents, independent of white space and the order of keys."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
