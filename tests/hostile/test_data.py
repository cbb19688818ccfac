"""Data and weights of the built-in trainer, and rows to predict, are files of others: they are read, or refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from oppa.cost.prediction import predict_rows
from oppa.cost.rows_file import read_rows
from oppa.problem.model import Model
from oppa.problem.transformers_config import read_config
from oppa.training.data.token_files import token_text
from oppa.training.model.huggingface import CONFIG, INDEX, WEIGHTS, PretrainedWeights, config_of, foreign_tensors
from oppa.trials.environments import RECORD, Environment
from tests.hostile import damage
from tests.training.families import TINY

PLACES = (damage.fifo, damage.directory, damage.device, damage.sparse, damage.deep, damage.no_text)


def tokens(folder: Path, name: str = "train.bin") -> Path:
    np.arange(200, dtype=np.uint16).tofile(folder / name)
    return folder / name


def dataset(folder: Path, column: Any) -> Path:
    """A folder as `save_to_disk` writes it."""
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"input_ids": column(arrow)})
    with arrow.OSFile(str(folder / "a.arrow"), "wb") as file, arrow.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "a.arrow"}]}))
    return folder


def lists(arrow: Any) -> Any:
    return arrow.array([[1, 2, 3]] * 20)


@pytest.mark.parametrize("damaged", [damage.fifo, damage.directory, damage.device], ids=lambda each: each.__name__)
def test_a_token_file_that_is_no_file_is_named(damaged: Callable[[Path], None], tmp_path: Path) -> None:
    file, _ = tokens(tmp_path), (tmp_path / "train.idx").touch()
    damaged(file)
    assert "train.bin" in damage.said(lambda: token_text(str(tmp_path / "train.idx"), vocab=256))


def test_a_header_of_no_tokens_is_an_empty_text(tmp_path: Path) -> None:
    header = np.zeros(256, np.int32)
    header[:2] = 20240520, 1
    header.tofile(tmp_path / "train.bin")
    assert len(token_text(str(tmp_path / "train.bin"), vocab=256)) == 0


@pytest.mark.parametrize("damaged", damage.REPLACED, ids=lambda each: each.__name__)
@pytest.mark.parametrize("name", ["a.arrow", "state.json"])
def test_a_damaged_file_of_a_dataset_is_named(name: str, damaged: Callable[[Path], None], tmp_path: Path) -> None:
    folder = dataset(tmp_path, lists)
    damaged(folder / name)
    named = str(tmp_path) in damage.said(lambda: token_text(str(folder), vocab=256))
    assert named or (name == "a.arrow" and damaged is damage.sparse)  # what follows a stream's end is not read


COLUMNS: dict[str, Callable[[Any], Any]] = {
    "dictionaries": lambda arrow: arrow.array([1, 2]).dictionary_encode(),
    "runs": lambda arrow: arrow.RunEndEncodedArray.from_arrays([3], arrow.array([1])),
    "texts": lambda arrow: arrow.array(["a"]),
    "lists of lists": lambda arrow: arrow.array([[[1]]]),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_column_of_another_type_is_named(kind: str, tmp_path: Path) -> None:
    assert "not lists of whole numbers" in damage.said(lambda: token_text(str(dataset(tmp_path, COLUMNS[kind])), vocab=256))


def test_lists_beyond_the_end_of_a_file_are_refused(tmp_path: Path) -> None:
    file = dataset(tmp_path, lists) / "a.arrow"
    whole, offsets = file.read_bytes(), np.arange(0, 63, 3, dtype=np.int32).tobytes()
    assert whole.count(offsets) == 1
    file.write_bytes(whole.replace(offsets, np.arange(0, 63, 3, dtype=np.int32)[:-1].tobytes() + (2**30).to_bytes(4, "little")))
    assert "a.arrow" in damage.said(lambda: token_text(str(tmp_path), vocab=256))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """The folder of a tiny model of Transformers, whose weights are 0."""
    (tmp_path / CONFIG).write_text(json.dumps(config_of(TINY)))
    save_file({name: torch.zeros(1) for name in foreign_tensors(TINY)}, tmp_path / WEIGHTS)
    return tmp_path


@pytest.mark.parametrize("damaged", PLACES, ids=lambda each: each.__name__)
@pytest.mark.parametrize("name", [WEIGHTS, INDEX, CONFIG])
def test_a_damaged_file_of_weights_is_named(name: str, damaged: Callable[[Path], None], weights: Path) -> None:
    (weights / name).touch()
    damaged(weights / name)
    found = damage.said(lambda: PretrainedWeights(weights, TINY))
    assert str(weights) in found or (name == INDEX and damaged is not damage.sparse)  # only a regular index counts


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.bool])
def test_weights_that_are_no_real_numbers_are_refused(dtype: torch.dtype, weights: Path) -> None:
    save_file({**load_file(weights / WEIGHTS), "model.norm.weight": torch.zeros(TINY.hidden, dtype=dtype)}, weights / WEIGHTS)
    read = PretrainedWeights(weights, TINY)
    assert f"is of the type {dtype}" in damage.said(lambda: read.tensor("norm.weight", (TINY.hidden,)))


@pytest.mark.parametrize("wrong", damage.WRONG, ids=lambda wrong: f"{wrong!r:.20}")
@pytest.mark.parametrize("key", ["n_embd", "n_head", "n_inner", "activation_function", "layer_norm_epsilon", "n_positions", "text_config"])
def test_a_configuration_of_another_kind_is_read_or_refused(key: str, wrong: Any, tmp_path: Path) -> None:
    values = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": 256, "vocab_size": 256, key: wrong}
    (tmp_path / CONFIG).write_text(json.dumps(values))
    usual: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 256, "vocab": 256}
    damage.said(lambda: Model(**{**usual, **read_config(tmp_path / CONFIG), "seq_len": 64}))


@pytest.mark.parametrize("damaged", [damage.fifo, damage.directory, damage.device, damage.sparse], ids=lambda each: each.__name__)
def test_rows_that_are_no_file_are_named(damaged: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "rows.csv").touch()
    damaged(tmp_path / "rows.csv")
    assert "rows.csv" in damage.said(lambda: read_rows(tmp_path / "rows.csv"))


def test_rows_of_too_many_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("," * 200_000 + "\n")
    assert "columns" in damage.said(lambda: read_rows(tmp_path / "rows.csv"))


@pytest.mark.parametrize("damaged", damage.REPLACED, ids=lambda each: each.__name__)
def test_a_damaged_record_of_an_environment_is_an_environment_that_is_not_ready(damaged: Callable[[Path], None], tmp_path: Path) -> None:
    made = Environment(runner=tmp_path / "runner", path=tmp_path / "made")
    made.python.parent.mkdir(parents=True)
    made.python.touch()
    (made.path / RECORD).write_text('{"packages": {"torch": "2.8"}}')
    assert (made.state, made.packages) == ("ready", {"torch": "2.8"})
    damaged(made.path / RECORD)
    assert (made.state, made.packages) == ("incomplete", {})


def test_the_memory_of_a_model_beyond_all_bounds_is_no_negative_number() -> None:
    """int64 holds no more bytes."""
    model = dict.fromkeys(("layers", "hidden", "ffn", "vocab", "seq_len", "gbs"), "1000000000")
    degrees = dict.fromkeys(("heads", "kv_heads", "gpus", "gpus_per_node", "mbs", "dp", "tp", "pp", "model_chunks"), "1")
    row = {**model, **degrees, "zero": "0", "device": "H100", "recompute": "none"}
    (predicted,) = predict_rows(pd.DataFrame([row])).to_dict("records")
    assert 2**61 < predicted["predicted_memory_low_bytes"] <= predicted["predicted_memory_bytes"] and not predicted["fits"]
