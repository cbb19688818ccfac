"""Token files are read as their writers wrote them, and refused where they are not what they state."""

import json
import struct
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from oppa.errors import EnvironmentLackingError, InputError
from oppa.problem.training import Training
from oppa.training.data.batches import Corpus
from oppa.training.data.token_files import HEADERS, INDEX_TYPES, token_text
from tests.training.families import ENCODER, TINY

COUNT = 1000
TOKENS = np.random.default_rng(0).integers(0, 50_000, COUNT)
LENGTHS = [0, 300, 1, 599, 100]
"""Lengths of the documents, of which one is empty."""


def plain(folder: Path, dtype: str) -> str:
    TOKENS.astype(dtype).tofile(folder / "train.bin")
    return str(folder / "train.bin")


def with_header(folder: Path, magic: int, **changed: int) -> str:
    version, dtype = HEADERS[magic]
    header = np.zeros(256, np.int32)
    header[:3] = changed.get("magic", magic), changed.get("version", version), changed.get("count", COUNT)
    (folder / "train.bin").write_bytes(header.tobytes() + TOKENS.astype(dtype).tobytes())
    return str(folder / "train.bin")


def megatron(folder: Path, code: int = 8, **changed: Any) -> str:
    """Write what `IndexedDatasetBuilder` of Megatron-LM does."""
    dtype = np.dtype(INDEX_TYPES.get(code, "uint16"))
    TOKENS.astype(dtype).tofile(folder / "text_document.bin")
    lengths = np.array(changed.get("lengths", LENGTHS), np.int32)
    pointers = (np.concatenate(([0], np.cumsum(lengths)[:-1])) * dtype.itemsize).astype(np.int64) + changed.get("shift", 0)
    header = changed.get("magic", b"MMIDIDX\x00\x00") + struct.pack("<QB", changed.get("version", 1), code)
    sizes = struct.pack("<QQ", changed.get("sequences", len(lengths)), len(lengths) + 1)
    documents = np.arange(len(lengths) + 1, dtype=np.int64)
    body = lengths.tobytes() + pointers.tobytes() + documents.tobytes()
    (folder / "text_document.idx").write_bytes(header + sizes + body + changed.get("modes", b""))
    return str(folder / "text_document")


WRITERS: dict[str, Callable[[Path], str]] = {
    "nanoGPT": lambda folder: plain(folder, "uint16"),
    "llm.c, GPT-2": lambda folder: with_header(folder, 20240520),
    "llm.c, Llama 3": lambda folder: with_header(folder, 20240801),
    "Megatron-LM": megatron,
    "Megatron-LM, int32": lambda folder: megatron(folder, 4),
    "Megatron-LM, with modes": lambda folder: megatron(folder, modes=bytes(len(LENGTHS))),
    "Megatron-LM, by its index": lambda folder: megatron(folder) + ".idx",
    "a pattern": lambda folder: plain(folder, "uint16").replace("train", "tr*"),
}


def all_of(tokens: str, **options: Any) -> list[int]:
    text = token_text(tokens, **{"vocab": 50_304, **options})
    found: list[int] = text.windows(torch.tensor([0]), len(text))[0].tolist()
    return found


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_the_tokens_are_those_that_were_written(write: Callable[[Path], str], tmp_path: Path) -> None:
    assert all_of(write(tmp_path)) == TOKENS.tolist()


def test_the_type_of_plain_tokens_follows_the_vocabulary_or_the_job(tmp_path: Path) -> None:
    path = plain(tmp_path, "uint32")
    assert all_of(path, vocab=128_256) == all_of(path, dtype="uint32") == TOKENS.tolist()
    with pytest.raises(InputError, match="every second token") as refused:
        all_of(path)
    assert "uint32" in refused.value.hint


def test_files_of_a_pattern_follow_each_other_by_name_and_a_sample_may_span_them(tmp_path: Path) -> None:
    for number, part in enumerate(np.array_split(TOKENS, 7)):
        part.astype(np.uint16).tofile(tmp_path / f"train_{number}.bin")
    assert all_of(f"{tmp_path}/train_*.bin") == TOKENS.tolist()
    training = Training(tokens=f"{tmp_path}/train_*.bin", token_dtype="uint16")
    model = TINY.__class__(**{**TINY.to_dict(), "vocab": 50_304})  # type: ignore[arg-type]
    corpus = Corpus.of_tokens(training, model, held_out=3)
    starts = corpus.samples(range(corpus.size)).inputs[:, 0].tolist() + corpus.validation(range(3)).inputs[:, 0].tolist()
    windows = [TOKENS[number * TINY.seq_len] for number in range((COUNT - 1) // TINY.seq_len)]
    assert sorted(starts) == sorted(windows), "an epoch and the held-out samples have every window once"


def test_a_token_above_the_vocabulary_is_named_with_its_file_and_its_place(tmp_path: Path) -> None:
    worst = int(np.flatnonzero(TOKENS >= 49_000)[0])
    with pytest.raises(InputError, match=f"the token {TOKENS[worst]} at byte {1024 + 2 * worst}, but `vocab = 49000`"):
        all_of(with_header(tmp_path, 20240520), vocab=49_000)
    with pytest.raises(InputError, match="the token -"):
        all_of(megatron(tmp_path, 3))  # as int16, half of the tokens are negative


def test_each_window_is_checked_not_only_the_beginning(tmp_path: Path) -> None:
    tokens = np.ones((1 << 20) + 100, np.uint16)
    tokens[-1] = 9
    tokens.tofile(tmp_path / "train.bin")
    text = token_text(str(tmp_path / "train.bin"), vocab=9)
    assert int(text.windows(torch.tensor([1 << 20]), 99).sum()) == 99
    with pytest.raises(InputError, match="the token 9 at byte"):
        text.windows(torch.tensor([1 << 20]), 100)


def cut(write: Callable[[Path], str], name: str, bytes_fewer: int) -> Callable[[Path], str]:
    def written(folder: Path) -> str:
        tokens = write(folder)
        path = folder / name
        path.write_bytes(path.read_bytes()[:-bytes_fewer])
        return tokens

    return written


def without(write: Callable[[Path], str], name: str) -> Callable[[Path], str]:
    def written(folder: Path) -> str:
        tokens = write(folder)
        (folder / name).unlink()
        return tokens

    return written


def empty(folder: Path) -> str:
    (folder / "train.bin").touch()
    return str(folder / "train.bin")


REFUSED: dict[str, tuple[Callable[[Path], str], str]] = {
    "nothing": (lambda folder: str(folder / "none"), "names no file"),
    "empty": (empty, "has 0 bytes"),
    "half a token": (cut(WRITERS["nanoGPT"], "train.bin", 1), "no whole number of tokens"),
    "fewer than the header states": (cut(WRITERS["llm.c, GPT-2"], "train.bin", 2), "states 1000 tokens of uint16"),
    "more than the header states": (lambda folder: with_header(folder, 20240520, count=999), "instead of"),
    "another version": (lambda folder: with_header(folder, 20240520, version=2), "has version 2"),
    "no index of Megatron-LM": (lambda folder: megatron(folder, magic=b"MMIDIDX\x00\x01"), "is not an index"),
    "another version of the index": (lambda folder: megatron(folder, version=2), "has version 2"),
    "tokens that are no whole numbers": (lambda folder: megatron(folder, 6), "tokens of the type number 6"),
    "an index that was cut short": (cut(megatron, "text_document.idx", 8), "states 5 sequences"),
    "an index that was cut to nothing": (cut(megatron, "text_document.idx", 150), "is not an index"),
    "an index that states too many sequences": (lambda folder: megatron(folder, sequences=2**60), "states 1152921504606846976"),
    "a gap between sequences": (lambda folder: megatron(folder, shift=2), "do not follow each other"),
    "a negative length": (lambda folder: megatron(folder, lengths=[300, -1, 701]), "do not follow each other"),
    "tokens that were cut short": (cut(megatron, "text_document.bin", 2), "its index states 1000 tokens"),
    "an index alone": (lambda folder: without(megatron, "text_document.bin")(folder) + ".idx", "is missing, but its index is there"),
}


@pytest.mark.parametrize(("write", "said"), REFUSED.values(), ids=REFUSED)
def test_what_contradicts_itself_is_refused(write: Callable[[Path], str], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said) as refused:
        all_of(write(tmp_path))
    assert refused.value.hint


def test_too_short_a_text_and_an_encoder_are_refused(tmp_path: Path) -> None:
    TOKENS[:33].astype(np.uint16).tofile(tmp_path / "train.bin")
    training = Training(tokens=str(tmp_path / "train.bin"))
    with pytest.raises(InputError, match="has 33 tokens, less than a sequence of 32"):
        Corpus.of_tokens(training, TINY.__class__(**{**TINY.to_dict(), "vocab": 50_304}))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="causal"):
        Corpus.of_tokens(training, ENCODER)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that `datasets` saved, in several files and record batches."""
    datasets = pytest.importorskip("datasets", reason="NOT TESTED on folders of `datasets`: the package is not installed")
    folder = tmp_path_factory.mktemp("datasets")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of dill, which hashes the rows
        save_with(datasets, folder)
    return folder


def save_with(datasets: Any, folder: Path) -> None:
    rows = np.split(TOKENS, np.cumsum(LENGTHS)[:-1])
    whole = datasets.Dataset.from_dict({"text": ["."] * len(rows), "input_ids": [row.tolist() for row in rows]})
    whole.save_to_disk(folder / "one")
    whole.save_to_disk(folder / "several", num_shards=2)
    whole.select([4, 3, 1]).save_to_disk(folder / "selected")
    fixed = TOKENS.reshape(100, 10).astype(np.uint16)
    features = datasets.Features({"input_ids": datasets.Sequence(datasets.Value("uint16"), length=10)})
    datasets.Dataset.from_dict({"input_ids": fixed.tolist()}, features=features).save_to_disk(folder / "fixed")
    datasets.DatasetDict({"train": whole, "test": whole}).save_to_disk(folder / "splits")
    whole.remove_columns("input_ids").save_to_disk(folder / "text")
    datasets.Dataset.from_dict({"input_ids": [[1], None]}).save_to_disk(folder / "gaps")
    datasets.Dataset.from_dict({"input_ids": [1.5]}).save_to_disk(folder / "numbers")


@pytest.mark.slow
def test_a_folder_of_datasets_is_read_where_it_lies(saved: Path) -> None:
    for name in ("one", "several", "fixed", "splits/train"):
        assert all_of(str(saved / name)) == TOKENS.tolist(), name
    assert all_of(str(saved / "selected")) == [*TOKENS[900:], *TOKENS[301:900], *TOKENS[:300]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    {"splits": "several splits", "text": "no column `input_ids`", "gaps": "not lists of", "numbers": "not lists of"}.items(),
)
def test_other_folders_of_datasets_are_refused(name: str, said: str, saved: Path) -> None:
    with pytest.raises(InputError, match=said) as refused:
        all_of(str(saved / name))
    assert refused.value.hint


@pytest.mark.slow
def test_an_arrow_file_that_was_cut_short_is_refused(saved: Path) -> None:
    (file,) = (saved / "one").glob("*.arrow")
    content = file.read_bytes()
    for kept in (0, 100, len(content) // 2):
        file.write_bytes(content[:kept])
        with pytest.raises(InputError, match="cannot be read"):
            all_of(str(saved / "one"))
    file.write_bytes(content)


def test_a_folder_that_save_to_disk_did_not_write_is_refused(tmp_path: Path) -> None:
    for text in (None, "[]", json.dumps({"_data_files": 1})):
        if text is not None:
            (tmp_path / "state.json").write_text(text)
        with pytest.raises(InputError, match="save_to_disk"):
            all_of(str(tmp_path))


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EnvironmentLackingError, match="pyarrow") as lacking:
        all_of(str(tmp_path))
    assert "the extra `tokens`" in lacking.value.hint
