"""Save and load the training state as a durable checkpoint, which any layout can load. The files are safetensors and JSON; no pickle.

    step-100/
        manifest.json             the model, the trainer's notes, and each piece's tensor, box, file and SHA-256
        rank-0000.safetensors     pieces of whole tensors; each element is in one file, however many ranks held it
        ...

Each rank writes a file into the folder `.step-100.partial`. When all files are on disk, one rank seals the checkpoint: it writes the
manifest and renames the folder. A folder with the final name is therefore complete. A rank reads and verifies only the pieces that it
needs.
"""

import collections
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from oppa.atomic_write import sync
from oppa.errors import CheckpointError
from oppa.problem.model import Model
from oppa.training.checkpoint.manifest import MANIFEST, MOST_BYTES, Manifest, Saved, damaged
from oppa.training.model.tensor_slices import Box, common, elements, index, rows_of
from oppa.training.reshard.exchange import State, find
from oppa.training.reshard.shards import Layout, TensorKey
from oppa.training.reshard.transfers import boxes_by_key, flows

PIECE_ELEMENTS = 1 << 24
"""Most elements of a piece, unless a single row has more; a rank reads one piece at a time."""


def begin(folder: Path) -> None:
    """Create the draft folder of a checkpoint, in place of an earlier draft; one rank calls it.

    Raises:
        CheckpointError: if `folder` exists.
    """
    if folder.exists():
        raise CheckpointError(f"`{folder}` exists already", hint="name another folder, or remove it: a checkpoint is never overwritten")
    abandon(folder)
    draft_of(folder).mkdir(parents=True)


def abandon(folder: Path) -> None:
    """Remove the draft folder of a checkpoint that cannot be completed; one rank calls it."""
    shutil.rmtree(draft_of(folder), ignore_errors=True)


def write_share(folder: Path, state: State, layout: Layout, rank: int) -> None:
    """Write this rank's share of the state durably; every rank calls it after `begin` has returned.

    Raises:
        OSError: if the file system refuses it.
    """
    file = draft_of(folder) / _file(rank)
    shapes = {one.key: one.shape for one in layout[rank]}
    tensors: dict[str, Tensor] = {}
    pieces = []
    for key, box in share_of(layout, rank):
        tensor = find(state[key], box).contiguous()
        dtype = str(tensor.dtype).removeprefix("torch.")
        piece = Saved(key=key, shape=shapes[key], dtype=dtype, box=box, file=file.name, sha256=sha256_of(tensor))
        tensors[piece.name] = tensor
        pieces.append(piece.to_dict())
    try:
        save_file(tensors, file)
    except SafetensorError as error:  # safetensors reports a full disk by an error of its own
        raise OSError(str(error)) from error
    sync(file)
    _write(_beside(file), json.dumps({"bytes": file.stat().st_size, "pieces": pieces}))


def seal(folder: Path, model: Model, *, steps: int, notes: Mapping[str, Any], ranks: int) -> None:
    """Complete the checkpoint; one rank calls it after all ranks have written their shares.

    Args:
        folder: Final folder of the checkpoint.
        model: Model that was trained.
        steps: Optimizer steps taken.
        notes: Values of the trainer that JSON can hold.
        ranks: Number of ranks.

    Raises:
        CheckpointError: if the manifest would be too long to be read.
    """
    files = [draft_of(folder) / _file(rank) for rank in range(ranks)]
    shares = {file.name: json.loads(_beside(file).read_text()) for file in files}
    manifest = Manifest(
        model=model.to_dict(),
        steps=steps,
        notes=notes,
        files={file: share["bytes"] for file, share in shares.items()},
        pieces=tuple(Saved.from_dict(piece) for share in shares.values() for piece in share["pieces"]),
    )
    text = manifest.to_json()
    if len(text) > MOST_BYTES:
        message = f"`{folder}` has {len(manifest.pieces)} pieces, but no manifest of more than {MOST_BYTES} bytes can be read"
        raise CheckpointError(message, hint="shard the state over fewer ranks: use a smaller `dp_shard` or a lower `zero_stage`")
    _write(draft_of(folder) / MANIFEST, text)
    for file in files:
        _beside(file).unlink()
    sync(draft_of(folder))
    draft_of(folder).rename(folder)
    sync(folder.parent)


def share_of(layout: Layout, rank: int) -> Iterator[tuple[TensorKey, Box]]:
    """Yield the boxes of the state that a rank writes. Of the ranks that hold a box, the one with the fewest elements so far writes it."""
    loads = [0] * len(layout)
    for key, boxes in boxes_by_key(layout).items():
        for flow in flows(boxes, boxes):
            for box in rows_of(flow.box, PIECE_ELEMENTS):
                writer = min(flow.holders, key=lambda holder: (loads[holder], holder))
                loads[writer] += elements(box)
                if writer == rank:
                    yield key, box


def load(folder: Path, manifest: Manifest, wanted: State) -> None:
    """Fill the tensors of a rank, in any layout, from a checkpoint.

    Raises:
        CheckpointError: if a piece was altered, or an element is missing.
    """
    filled, needed = dict.fromkeys(wanted, 0), collections.defaultdict[str, list[Saved]](list)
    for piece in manifest.pieces:
        if _touches(piece, wanted):
            needed[piece.file].append(piece)
    for file, pieces in needed.items():
        for piece, tensor in _verified(folder / file, pieces):
            for box, place in wanted[piece.key]:
                if place.dtype != tensor.dtype:
                    raise damaged(folder / file, f"`{piece.name}` has the type {piece.dtype}, not {place.dtype}")
                both = common(box, piece.box)
                if both is not None:
                    place[index(both, box)].copy_(tensor[index(both, piece.box)])
                    filled[piece.key] += elements(both)
    for key, boxes in wanted.items():
        if filled[key] != sum(elements(box) for box, _ in boxes):
            raise CheckpointError(f"`{folder}` does not have all of `{key.name}` ({key.kind})", hint="name a checkpoint of this model")


def draft_of(folder: Path) -> Path:
    """Return the folder of a checkpoint while it is incomplete."""
    return folder.with_name(f".{folder.name}.partial")


def sha256_of(tensor: Tensor) -> str:
    """Return the SHA-256 of the bytes of a tensor in host memory."""
    return hashlib.sha256(tensor.contiguous().view(-1).view(torch.uint8).numpy().data).hexdigest()


def _touches(piece: Saved, wanted: State) -> bool:
    boxes = (box for box, _ in wanted.get(piece.key, ()))
    return any(len(box) == len(piece.box) and common(box, piece.box) is not None for box in boxes)


def _verified(file: Path, pieces: list[Saved]) -> Iterator[tuple[Saved, Tensor]]:
    """Yield the pieces of a file one at a time; raise CheckpointError if one was altered."""
    try:
        with safe_open(file, "pt") as opened:
            for piece in pieces:
                yield piece, _unaltered(opened, file, piece)
    except (OSError, SafetensorError) as error:
        raise damaged(file, str(error)) from error


def _unaltered(opened: Any, file: Path, piece: Saved) -> Tensor:
    """Return a piece of an open file; its shape is checked before its bytes are read."""
    if tuple(opened.get_slice(piece.name).get_shape()) == tuple(map(len, piece.box)):
        tensor: Tensor = opened.get_tensor(piece.name)
        if tensor.dtype == getattr(torch, piece.dtype, None) and sha256_of(tensor) == piece.sha256:
            return tensor
    raise damaged(file, f"`{piece.name}` was changed after it was written")


def _file(rank: int) -> str:
    return f"rank-{rank:04}.safetensors"


def _beside(file: Path) -> Path:
    """Return the file in which a rank lists its pieces until the manifest does."""
    return file.with_suffix(".json")


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    sync(path)
