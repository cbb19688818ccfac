"""Read and write the manifest of a checkpoint, `manifest.json`, with checks that it and the listed files are intact."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from oppa.errors import CheckpointError
from oppa.problem.model import Model
from oppa.training.model.tensor_slices import Box
from oppa.training.reshard.shards import TensorKey

MANIFEST, VERSION = "manifest.json", 1

_ELSEWHERE = ("name", "seq_len", "entry_point")
"""Fields of a model that do not affect its weights: its name, its sequence length and the location of its code."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A saved piece: a box of a whole tensor of the training state, stored in `file` under `name`."""

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
        """Build a piece from the result of `to_dict`."""
        box = tuple(range(start, stop) for start, stop in values["box"])
        return cls(**{**values, "key": TensorKey(*values["key"]), "shape": tuple(values["shape"]), "box": box})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The contents of a checkpoint: optimizer steps taken, the trainer's notes (JSON), bytes of each file, and disjoint pieces."""

    model: Mapping[str, Any]
    steps: int
    notes: Mapping[str, Any]
    files: Mapping[str, int]
    pieces: tuple[Saved, ...]

    def to_json(self) -> str:
        """Return the JSON text, including a checksum of the contents."""
        body = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        body |= {"pieces": [piece.to_dict() for piece in self.pieces]}
        return json.dumps({"version": VERSION, "sha256": _digest(body), "checkpoint": body}, indent=1) + "\n"

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of a checkpoint, and check that all files exist with their recorded sizes.

        Raises:
            CheckpointError: if there is no manifest, it was altered or has another version, or a file is missing or of another size.
        """
        try:
            values = json.loads((folder / MANIFEST).read_text())
            version, expected, body = values["version"], values["sha256"], values["checkpoint"]
        except FileNotFoundError:
            raise CheckpointError(
                f"`{folder}` is not a checkpoint: it has no `{MANIFEST}`", hint="name a folder that a run has saved"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(folder / MANIFEST, str(error)) from error
        if version != VERSION:
            raise CheckpointError(
                f"`{folder}` has format {version}, but this version of oppa reads {VERSION}", hint="use the version of oppa that wrote it"
            )
        if _digest(body) != expected:
            raise damaged(folder / MANIFEST, "it was changed after it was written")
        manifest = cls(**{**body, "pieces": tuple(map(Saved.from_dict, body["pieces"]))})
        manifest._require_files(folder)
        return manifest

    def _require_files(self, folder: Path) -> None:
        for file, expected_bytes in self.files.items():
            found_bytes = (folder / file).stat().st_size if (folder / file).is_file() else None
            if found_bytes is None:
                raise damaged(folder / file, "it is missing")
            if found_bytes != expected_bytes:
                raise damaged(folder / file, f"it has {found_bytes} bytes instead of {expected_bytes}")

    def require_model(self, model: Model) -> None:
        """Check that the checkpoint is of this model.

        Raises:
            CheckpointError: names the first field that differs.
        """
        for name, value in dataclasses.asdict(model).items():
            if name not in _ELSEWHERE and self.model.get(name) != value:
                raise CheckpointError(
                    f"the checkpoint is for another model: `{name} = {self.model.get(name)}`, not {value}",
                    hint=f"set `{name} = {self.model.get(name)}` in `[model]`, or name another checkpoint",
                )


def damaged(path: Path, why: str) -> CheckpointError:
    """Return the error for a damaged file."""
    return CheckpointError(f"`{path}` is damaged: {why}", hint="resume from another checkpoint")


def _digest(body: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest's contents, independent of white space and the order of keys."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
