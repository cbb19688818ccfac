"""Write the weights of a checkpoint as other tools read them: a folder of Hugging Face Transformers, or torch's distributed checkpoint.

    huggingface   `config.json` and safetensors, for `from_pretrained`; weights alone
    dcp           `torch.distributed.checkpoint`, for `dcp.load` and `dcp_to_torch_save`; weights, moments and steps

No more than one file's tensors, or one tensor of DCP, is in memory at a time.
"""

import contextlib
import functools
import json
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from oppa.errors import CheckpointError
from oppa.problem.model import Model
from oppa.training.checkpoint.manifest import Manifest
from oppa.training.checkpoint.storage import load
from oppa.training.model.huggingface import CONFIG, INDEX, WEIGHTS, config_of, foreign_tensors
from oppa.training.reshard.shards import WEIGHT, TensorKey

SHARD_BYTES = 4 << 30
"""Most bytes of a file of weights, unless a single tensor has more."""


def export_huggingface(checkpoint: Path, folder: Path, *, shard_bytes: int = SHARD_BYTES) -> list[Path]:
    """Write the weights of a checkpoint for Transformers, and return the files; `config.json` is written last.

    Raises:
        CheckpointError: the checkpoint is damaged, or the files cannot be written.
        InputError: Transformers has no architecture that computes what the model does.
    """
    stored = _Stored(checkpoint)
    foreign = foreign_tensors(stored.model)
    sizes = {name: sum(stored.bytes_of(TensorKey(WEIGHT, part)) for part in each.parts) for name, each in foreign.items()}
    shards = list(_shards(sizes, shard_bytes))
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    names = [WEIGHTS] if len(shards) == 1 else names
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, shard in zip(names, shards, strict=True):
            parts = stored.read(TensorKey(WEIGHT, part) for each in shard for part in foreign[each].parts)
            weights = {key.name: tensor for key, tensor in parts.items()}
            save_file({each: foreign[each].whole(weights) for each in shard}, folder / name, metadata={"format": "pt"})
        texts = {CONFIG: json.dumps(config_of(stored.model), indent=2)}
        if len(shards) > 1:
            where = {each: name for name, shard in zip(names, shards, strict=True) for each in shard}
            texts = {INDEX: json.dumps({"metadata": {"total_size": sum(sizes.values())}, "weight_map": where}, indent=2), **texts}
        for name, text in texts.items():
            (folder / name).write_text(text + "\n")
    return [folder / name for name in (*names, *texts)]


def export_dcp(checkpoint: Path, folder: Path) -> list[Path]:
    """Write weights, moments and steps of a checkpoint in torch's format, and return the files.

    The state has `model`, weights by name, and `optimizer`, whose `state` has the moments and the steps of each weight.

    Raises:
        CheckpointError: the checkpoint is damaged, or the files cannot be written.
    """
    stored = _Stored(checkpoint)
    model: dict[str, Tensor] = {}
    moments: dict[str, dict[str, Tensor]] = {}
    read: dict[str, Callable[[], Tensor]] = {}
    for key, (shape, dtype) in stored.tensors.items():
        place, last = (model, key.name) if key.kind == WEIGHT else (moments.setdefault(key.name, {}), key.kind)
        place[last] = torch.empty(shape, dtype=dtype, device="meta")
        if key.kind == "exp_avg":
            place["step"] = torch.tensor(float(stored.steps))
        name = f"model.{key.name}" if key.kind == WEIGHT else f"optimizer.state.{key.name}.{key.kind}"
        read[name] = functools.partial(stored.one, key)
    state = {"model": model, "optimizer": {"state": moments}}
    with _writing(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a single process writes it, as intended
        folder.mkdir(parents=True, exist_ok=True)
        save(state, storage_writer=FileSystemWriter(folder), planner=_ReadingPlanner(read), no_dist=True)
    return sorted(folder.iterdir())


class _ReadingPlanner(DefaultSavePlanner):
    """Reads each tensor as it is written; the state itself has none of their memory."""

    def __init__(self, read: Mapping[str, Callable[[], Tensor]]) -> None:
        super().__init__()
        self._read = read

    def lookup_object(self, index: Any) -> Any:
        """Return a tensor of the state by its name."""
        return self._read[index.fqn]() if index.fqn in self._read else super().lookup_object(index)


class _Stored:
    """Reads the tensors of a checkpoint, whole."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._manifest = folder, Manifest.read(folder)
        self.steps = self._manifest.steps
        self.tensors: dict[TensorKey, tuple[tuple[int, ...], torch.dtype]] = {
            piece.key: (piece.shape, getattr(torch, piece.dtype)) for piece in self._manifest.pieces
        }
        try:
            self.model = Model(**self._manifest.model)
        except TypeError as error:
            raise CheckpointError(f"`{folder}` is of an unknown model: {error}", hint="use the version of oppa that wrote it") from error

    def bytes_of(self, key: TensorKey) -> int:
        shape, dtype = self.tensors.get(key, ((), torch.float32))
        return math.prod(shape) * dtype.itemsize

    def one(self, key: TensorKey) -> Tensor:
        """Return a whole tensor."""
        return self.read([key])[key]

    def read(self, keys: Iterable[TensorKey]) -> dict[TensorKey, Tensor]:
        """Return whole tensors; raises CheckpointError if one is altered or missing."""
        found: dict[TensorKey, Tensor] = {}
        for key in keys:
            if key not in self.tensors:
                raise CheckpointError(f"`{self._folder}` does not have `{key.name}` ({key.kind})", hint="name a checkpoint of a whole run")
            shape, dtype = self.tensors[key]
            found[key] = torch.empty(shape, dtype=dtype)
        load(self._folder, self._manifest, {key: [(tuple(map(range, tensor.shape)), tensor)] for key, tensor in found.items()})
        return found


def _shards(sizes: Mapping[str, int], most: int) -> Iterator[list[str]]:
    """Yield the names of the tensors of each file, in order."""
    shard: list[str] = []
    for name in sizes:
        if shard and sum(sizes[each] for each in shard) + sizes[name] > most:
            yield shard
            shard = []
        shard.append(name)
    yield shard


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Raise CheckpointError if a file cannot be written; torch wraps errors of its ranks, of which this process is the only one."""
    try:
        yield
    except CheckpointException as wrapped:
        for error, _ in wrapped.failures.values():
            raise error if isinstance(error, CheckpointError) else _unwritable(folder, error) from wrapped
        raise
    except (OSError, SafetensorError) as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: BaseException) -> CheckpointError:
    return CheckpointError(f"`{folder}` cannot be written: {error}", hint="check the disk, or name another folder")
