"""Find the tokens in files that other tools have written; nothing but their headers is read.

    nanoGPT      `train.bin`: uint16 or uint32 tokens and nothing else
    llm.c        `train.bin`: the same after a header of 1,024 bytes, which modded-nanogpt has, too
    Megatron-LM  `text_document.bin` and `text_document.idx`, an index of its sequences (`MMapIndexedDataset`)
    datasets     a folder that Hugging Face's `save_to_disk` wrote, with a column `input_ids` of lists

Documents are concatenated in their order, and a sample may begin in one and end in another. Attention does not stop at their bounds.
"""

import glob
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from oppa import catalog
from oppa.errors import EnvironmentLackingError, InputError, reason
from oppa.regular_file import open_regular, read_json
from oppa.training.data.text import Array, Stretch, Text

HEADER_BYTES = 1024
HEADERS = {20240520: (1, "uint16"), 20240801: (7, "uint32")}
"""Version and type of tokens by the first number of a header (karpathy/llm.c, dev/data/data_common.py)."""
INDEX, INDEX_VERSION, INDEX_HEADER_BYTES = b"MMIDIDX\x00\x00", 1, 34
INDEX_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
"""Whole numbers among the types of an index (NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py)."""
COLUMN, STATE = "input_ids", "state.json"
_CHECKED = 1 << 20
"""Tokens that are compared with the vocabulary before training begins."""


def token_text(tokens: str, *, vocab: int, dtype: str = "") -> Text:
    """Return the tokens of a folder or of files as one text.

    Args:
        tokens: A folder, a file, a file without its suffix, or a pattern of files.
        vocab: Number that all tokens must be below. A part of them is checked here, and each when it is read.
        dtype: Type of tokens in files that do not state it; empty: the smaller of `uint16` and `uint32` that holds the vocabulary.

    Raises:
        InputError: if there is no file, a file contradicts its header or is cut short, or a token is not in the vocabulary.
        EnvironmentLackingError: if the folder is of `datasets`, and pyarrow is not installed.
    """
    usual = dtype or ("uint16" if vocab <= 1 << 16 else "uint32")
    stretches = [stretch for path in _paths(tokens) for stretch in _stretches(path, usual, stated=bool(dtype))]
    text = Text(stretches, vocab)
    text.check(_CHECKED)
    return text


def _paths(tokens: str) -> list[Path]:
    """Return the folder, or the files with their suffix; an index stands for the file that it describes."""
    if Path(tokens).is_dir():
        return [Path(tokens)]
    found = [tokens] if Path(tokens).is_file() else sorted(glob.glob(tokens)) or sorted(glob.glob(f"{tokens}.bin"))  # noqa: PTH207 - absolute
    if not found:
        raise InputError(f"`tokens = {tokens}` names no file", hint="name a file, a folder of `save_to_disk`, or a pattern of files")
    return list(dict.fromkeys(Path(path).with_suffix(".bin") if path.endswith(".idx") else Path(path) for path in found))


def _stretches(path: Path, usual: str, *, stated: bool) -> Iterator[Stretch]:
    if path.is_dir():
        yield from _of_datasets(path)
        return
    try:
        open_regular(path).close()
        yield _of_megatron(path) if path.with_suffix(".idx").is_file() else _with_header(path) or _plain(path, usual, stated=stated)
    except FileNotFoundError:
        raise InputError(f"`{path}` is missing, but its index is there", hint="copy both files of the data") from None
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {error.strerror}", hint="name regular files that you may read") from None


def _with_header(path: Path) -> Stretch | None:
    """Return the tokens after the header of llm.c; None if there is no such header."""
    with path.open("rb") as file:
        start = file.read(12)
    if len(start) < 12:
        return None
    magic, version, count = struct.unpack("<iii", start)
    if magic not in HEADERS:
        return None
    expected, dtype = HEADERS[magic]
    if version != expected:
        raise InputError(f"`{path}` has version {version} of its header, not {expected}", hint="write it again with the present llm.c")
    _require_size(path, HEADER_BYTES + count * np.dtype(dtype).itemsize, f"its header states {count} tokens of {dtype}")
    return Stretch(path, count, dtype, HEADER_BYTES)


def _plain(path: Path, dtype: str, *, stated: bool) -> Stretch:
    """Return the tokens of a file without a header."""
    size = path.stat().st_size
    count, rest = divmod(size, np.dtype(dtype).itemsize)
    if rest or not count:
        message = f"`{path}` has {size} bytes, which is no whole number of tokens of type {dtype}"
        raise InputError(message, hint="it may be cut short; or set `token_dtype` in [training]")
    stretch = Stretch(path, count, dtype)
    first = stretch.tokens(0, min(count, 4096))
    if dtype == "uint16" and not stated and len(first) >= 64 and first[::2].any() and not first[1::2].any():
        message = f"every second token of `{path}` is 0: its tokens seem to be uint32, not uint16"
        raise InputError(message, hint='set `token_dtype = "uint32"` in [training], or "uint16" if they are')
    return stretch


def _of_megatron(path: Path) -> Stretch:
    """Return the tokens of a file with an index, whose sequences must fill the file without gaps."""
    index = path.with_suffix(".idx")
    with index.open("rb") as file:
        header = file.read(INDEX_HEADER_BYTES)
    if header[: len(INDEX)] != INDEX or len(header) < INDEX_HEADER_BYTES:
        raise InputError(f"`{index}` is not an index of Megatron-LM: it begins otherwise", hint="remove it if the tokens need no index")
    version, code, count, documents = struct.unpack("<QBQQ", header[len(INDEX) :])
    if version != INDEX_VERSION or code not in INDEX_TYPES:
        what = f"version {version}" if version != INDEX_VERSION else f"tokens of the type number {code}"
        raise InputError(f"`{index}` has {what}", hint="write it again with Megatron-LM's `tools/preprocess_data.py`")
    dtype = np.dtype(INDEX_TYPES[code])
    body = INDEX_HEADER_BYTES + 12 * count + 8 * documents
    if index.stat().st_size not in (body, body + count):  # an index of several modes has a byte more for each sequence
        message = f"`{index}` has {index.stat().st_size} bytes, but its header states {count} sequences and {documents} documents"
        raise InputError(message, hint=_CUT_SHORT)
    lengths = _numbers(index, "<i4", count, INDEX_HEADER_BYTES)
    pointers = _numbers(index, "<i8", count, INDEX_HEADER_BYTES + 4 * count)
    ends = np.cumsum(lengths, dtype=np.int64) * dtype.itemsize
    if count and (int(lengths.min()) < 0 or pointers[0] != 0 or not np.array_equal(pointers[1:], ends[:-1])):
        raise InputError(f"the sequences in `{index}` do not follow each other", hint="write both files again with Megatron-LM's tools")
    total = int(ends[-1]) if count else 0
    _require_size(path, total, f"its index states {total // dtype.itemsize} tokens of {dtype}")
    return Stretch(path, total // dtype.itemsize, dtype.name)


def _numbers(path: Path, dtype: str, count: int, offset: int) -> Array:
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=(count,)) if count else np.empty(0, dtype)


_CUT_SHORT = "it may be cut short: copy or write it again"


def _require_size(path: Path, expected: int, why: str) -> None:
    if (size := path.stat().st_size) != expected:
        raise InputError(f"`{path}` has {size} bytes instead of {expected}: {why}", hint=_CUT_SHORT)


def _of_datasets(folder: Path) -> Iterator[Stretch]:
    """Yield the lists of a column in the Arrow files of a folder, as places in these files."""
    if (folder / "dataset_dict.json").is_file():
        splits = ", ".join(sorted(path.name for path in folder.iterdir() if path.is_dir()))
        raise InputError(f"`{folder}` holds several splits", hint=f"name one of them, such as `{folder.name}/SPLIT`: {splits}")
    try:
        files = [folder / each["filename"] for each in read_json(folder / STATE)["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"`{folder}` is no folder that `save_to_disk` wrote: {error!r:.200}", hint=f"name one with `{STATE}`") from None
    arrow = _pyarrow()
    for file in files:
        try:
            open_regular(file).close()  # pyarrow waits for a FIFO
            yield from _of_arrow(arrow, file)
        except (OSError, ValueError, arrow.ArrowException) as error:
            raise InputError(f"`{file}` cannot be read: {reason(error)}", hint=_CUT_SHORT) from None


def _of_arrow(arrow: Any, file: Path) -> Iterator[Stretch]:
    """Yield the place of each record batch's tokens in an Arrow stream."""
    with arrow.memory_map(str(file)) as mapped:
        whole = mapped.read_buffer()  # the mapped file itself: nothing is read
        reader = arrow.ipc.open_stream(whole)
        if COLUMN not in reader.schema.names:
            raise InputError(f"`{file}` has no column `{COLUMN}`", hint=f"its columns are {', '.join(reader.schema.names)}")
        for batch in reader:
            column = batch.column(COLUMN)
            column.validate(full=True)  # lists that a damaged file places beyond its end
            kinds = arrow.types.is_list, arrow.types.is_large_list, arrow.types.is_fixed_size_list
            if not any(is_of(column.type) for is_of in kinds) or not arrow.types.is_integer(column.type.value_type) or column.null_count:
                raise InputError(f"`{COLUMN}` in `{file}` is {column.type}, not lists of whole numbers", hint="write tokens as lists")
            values = column.flatten()
            dtype = np.dtype(column.type.value_type.to_pandas_dtype())
            offset = values.buffers()[1].address - whole.address + values.offset * dtype.itemsize if len(values) else 0
            if values.null_count or not 0 <= offset <= whole.size - len(values) * dtype.itemsize:
                raise InputError(f"`{COLUMN}` in `{file}` has gaps or is compressed", hint="write it again with `save_to_disk`")
            yield Stretch(file, len(values), dtype.name, offset)


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        message = "a folder of Hugging Face's `datasets` needs the package `pyarrow`"
        raise EnvironmentLackingError(message, hint=f"install the extra `tokens`: {catalog.install_hint('tokens')}") from error
    return pyarrow
