"""Convert the rows of a user's table into a workload; models, devices and frameworks may differ from row to row."""

import difflib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from oppa.cost.facts import (
    EIGHT_BIT,
    FROZEN_BYTES,
    MOMENT_SHARES,
    OPTIMIZER_STATE_BYTES,
    TRAINED,
    format_facts,
    layout_of,
    machine_facts,
)
from oppa.cost.framework import DEFAULT, frameworks, load_framework
from oppa.cost.hardware import load_hardware
from oppa.cost.model_facts import shape_facts
from oppa.cost.workload import CP_MODES, DISPATCHERS, MODULES, RECOMPUTE, ConfigurationFacts, DeviceFacts, FormatFacts, ModelFacts, Workload
from oppa.errors import InputError, nearest
from oppa.problem.devices import devices, identify, sharing
from oppa.problem.model import OF_EXPERTS, OF_LATENTS, OF_WINDOWS, Model

MODEL = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len")
PLACE = ("gpus", "gpus_per_node")
LAYOUT = ("gbs", "mbs", "dp", "tp", "pp", "model_chunks", "zero")
REQUIRED = (*MODEL, "device", *PLACE, *LAYOUT, "recompute")
COUNTS = {"cp": 1, "ep": 1, "etp": 0, "shard": 0, "hpz": 1, "experts": 1, "experts_per_token": 1, "recompute_layers": 0}
"""Optional whole numbers, with their defaults: 0 is all of them, or the tensor-parallel size for `etp`."""
WIDTHS = ("head_dim", *OF_EXPERTS, *OF_LATENTS, *OF_WINDOWS)
"""Optional dimensions of a model; 0, or an empty cell, is the usual one."""
BF16 = "bf16"
PRECISIONS = ("", "fp32", "tf32", "fp16", BF16, *EIGHT_BIT)
"""Accepted precisions; empty means the device's default."""
OFFLOADS = ("none", "activations", "optimizer", "parameters")
ATTENTIONS = ("flash", "plain")
LOSSES = ("fused", "chunked", "plain", "plain-16-bit")
GRADIENTS = RESIDUALS = ("16-bit", "32-bit")
NORMS = ("fused", "plain")
EXPERT_PRODUCTS = ("grouped", "loop")
BALANCED = "balanced"
STAGE_LAYOUTS = ("even", BALANCED)
ALSO = {"p2p": "ring", "a2a": "all-to-all", "all_gather": "all-gather", "allgather": "all-gather"}
"""Megatron-LM's names of ways to exchange in context parallelism."""
HIERARCHICAL = dict.fromkeys(
    ("a2a+p2p", "p2p+a2a"), "the cost model has no exchange in two levels; use `all-to-all` within a host, `ring` between hosts"
)
"""Megatron-LM's ways to exchange that are not modelled, with the hint for each."""
CORE = "core_attn"
"""Module that selective recomputation repeats if none is stated."""
OVERLAPS = ("overlap_p2p", "overlap_zero_comm", "overlap_zero_allgather")
LAYOUT_FLAGS = (
    *(*OVERLAPS, "overlap_tp", "overlap_ep", "compiled", "cuda_graphs"),
    *("quantized_weights", "quantized_gradients", "fp8_weights"),
)
FLAGS = {"gated": True, "tied": False, **dict.fromkeys(LAYOUT_FLAGS, False)}
"""Optional flags, with their defaults; those of `sequence_parallel` and, with model chunks, of `overlap_p2p` are the framework's."""
WORDS: dict[str, tuple[Sequence[str], str]] = {
    "precision": (PRECISIONS, ""),
    "optimizer": (tuple(OPTIMIZER_STATE_BYTES), "adamw"),
    "trained": (tuple(TRAINED), "all"),
    "weights": (tuple(FROZEN_BYTES), "16-bit"),
    "cp_mode": ((*CP_MODES, *ALSO), ""),
    "dispatcher": (DISPATCHERS, DISPATCHERS[0]),
    "gradients": (GRADIENTS, ""),
    "moments": (tuple(MOMENT_SHARES), ""),
    "attention": (ATTENTIONS, "flash"),
    "loss": (LOSSES, ""),
    "residuals": (RESIDUALS, "16-bit"),
    "norms": (NORMS, ""),
    "expert_products": (EXPERT_PRODUCTS, "grouped"),
    "offload": (OFFLOADS, "none"),
    "stage_layout": (STAGE_LAYOUTS, ""),
}
"""Optional words: those that are accepted, and the default."""
FUSED = ("loss", "norms")
"""Optional words whose default is `fused` if a framework is named, and torch's own operations otherwise."""
OPTIONAL = ("framework", "sequence_parallel", "recompute_modules", *FLAGS, *WORDS, *COUNTS, *WIDTHS)
LARGEST = 10**9
_ALIKE = 0.85
"""Similarity of two names from which one is likely a misspelling of the other."""
_log = logging.getLogger(__name__)


def check_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows as `convert_rows` does, and warn of what is likely a mistake in them."""
    _warn_of_misspelt(map(str, rows.columns))
    found = convert_rows(rows)
    _warn_of_missing_products(found)
    _warn_of_formats_without_effect(found)
    return found


def convert_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the columns that the cost model reads, converted to their types, with defaults for optional columns.

    Raises:
        InputError: a column is missing or occurs twice, or a value is invalid; the message names the column or the line.
    """
    if not rows.columns.is_unique:
        twice = rows.columns[rows.columns.duplicated()][0]
        raise InputError(f"the rows have two columns `{twice}`", hint="keep one of them, or rename the other")
    for name in REQUIRED:
        if name not in rows:
            raise InputError(f"the rows have no column `{name}`", hint=_lacking_hint(name, map(str, rows.columns)))
    given = {name: rows[name] for name in OPTIONAL if name in rows}
    checked: dict[str, Any] = {name: _whole_numbers(rows[name], least=1) for name in (*MODEL, *PLACE, *LAYOUT) if name != "zero"}
    checked["zero"] = _whole_numbers(rows["zero"], least=0, most=3)
    checked["device"] = _devices(rows["device"])
    checked["recompute"] = _words(rows["recompute"], RECOMPUTE, default="none")
    checked["framework"] = _words(given.get("framework", pd.Series(DEFAULT, rows.index)), frameworks(), default=DEFAULT)
    priors = {name: load_framework(name) for name in checked["framework"].unique()}
    split, sent = (
        checked["framework"].map({name: getattr(prior, fact) for name, prior in priors.items()}).astype(bool)
        for fact in ("sequence_parallel", "overlaps_interleaved_p2p")
    )
    usual = {**FLAGS, "sequence_parallel": split, "overlap_p2p": sent & (checked["model_chunks"] > 1)}
    for name, flag in usual.items():
        checked[name] = _flags(given[name], default=flag) if name in given else flag
    for name, (known, word) in WORDS.items():
        checked[name] = _words(given[name], known, default=word) if name in given else word
    checked["recompute_modules"] = _modules(given["recompute_modules"]) if "recompute_modules" in given else CORE
    for name in FUSED:
        usual_word = np.where(checked["framework"] == DEFAULT, load_framework(DEFAULT).usual(name), "fused")
        checked[name] = np.where(checked[name] != "", checked[name], usual_word)
    for name, number in {**COUNTS, **dict.fromkeys(WIDTHS, 0)}.items():
        checked[name] = _whole_numbers(given[name], least=min(number, 1), default=number) if name in given else number
    return pd.DataFrame(checked)


def _lacking_hint(name: str, stated: Iterable[str]) -> str:
    """Return the hint for a required column that the rows lack: a name that is likely meant, or all columns."""
    folded = {each.strip().casefold(): each for each in stated if each not in (*REQUIRED, *OPTIONAL)}
    if near := difflib.get_close_matches(name, folded, 1, _ALIKE):
        return f"rename the column `{folded[near[0]]}`, if it means that"
    return f"add it; the rows need {', '.join(REQUIRED)}, and may have {', '.join(OPTIONAL)}"


def _warn_of_missing_products(rows: pd.DataFrame) -> None:
    """Warn of devices whose rows compute in 8 bits or in bf16 without such matrix products."""
    for device in rows["device"][rows["precision"].isin(EIGHT_BIT)].unique():
        if EIGHT_BIT[0] not in load_hardware(device).matmul_flops_per_s:
            _log.warning("`%s` has no 8-bit matrix products: its rows in 8 bits are predicted at the rate of 16", device)
    for device in rows["device"][rows["precision"] == BF16].unique():
        if BF16 not in load_hardware(device).matmul_flops_per_s:
            _log.warning("`%s` has no bf16 matrix products: its rows in bf16 are predicted at the rate of fp32", device)


def _warn_of_formats_without_effect(rows: pd.DataFrame) -> None:
    """Warn of formats of frozen weights in rows whose weights all train."""
    for weights in rows["weights"][(rows["trained"] == "all") & (rows["weights"] != WORDS["weights"][1])].unique():
        _log.warning("`weights = %s` has no effect on rows whose weights all train; state `trained = lora` if they do not", weights)


def _warn_of_misspelt(names: Iterable[str]) -> None:
    """Warn of columns that are not read, and whose names differ little from those of optional columns that are absent."""
    stated = {*names}
    absent = [name for name in OPTIONAL if name not in stated]
    for name in sorted(stated.difference(REQUIRED, OPTIONAL)):
        if near := difflib.get_close_matches(name, absent, 1, _ALIKE):
            _log.warning("the column `%s` is not read; rename it if it means `%s`", name, near[0])


def broken_rules(rows: pd.DataFrame) -> dict[str, NDArray[np.bool_]]:
    """Return the rules of a row that a framework can run, each with a mask of the checked rows that break it, shape (n,).

    Attention's rules are those of Megatron-LM 0.16 (`TransformerConfig`): `kv_heads` may divide `tp`, and ranks then hold copies. Its
    all-to-all divides the heads of a rank once more (Transformer Engine's `AttnFuncWithCPAndQKVOA2A`).
    """
    dp, cp, tp, pp = (rows[name].astype(np.float64) for name in ("dp", "cp", "tp", "pp"))  # int64 products could overflow
    etp = rows["etp"].where(rows["etp"] > 0, rows["tp"])
    shared = (rows["kv_heads"] % rows["tp"] != 0) & (rows["tp"] % rows["kv_heads"] != 0)
    exchanged = (rows["framework"] == "megatron") & rows["cp_mode"].replace(ALSO).eq("all-to-all") & (cp > 1)
    usual_width = rows["head_dim"] == 0
    width = rows["head_dim"].where(~usual_width, rows["hidden"] // rows["heads"])
    broken = {
        "dp * cp * tp * pp = gpus": dp * cp * tp * pp != rows["gpus"],
        "gbs a multiple of dp * mbs": rows["gbs"] % (rows["dp"] * rows["mbs"]) != 0,
        "pp * model_chunks <= layers": pp * rows["model_chunks"] > rows["layers"],
        "seq_len a multiple of cp": rows["seq_len"] % rows["cp"] != 0,
        "hidden a multiple of heads, unless head_dim is stated": usual_width & (rows["hidden"] % rows["heads"] != 0),
        "heads a multiple of kv_heads": rows["heads"] % rows["kv_heads"] != 0,
        "heads a multiple of tp": rows["heads"] % rows["tp"] != 0,
        "kv_heads a multiple or a divisor of tp": shared,
        "kv_heads a multiple of tp * cp under Megatron-LM's all-to-all": exchanged & (rows["kv_heads"] % (tp * cp) != 0),
        "qk_rope_head_dim < head_dim": rows["qk_rope_head_dim"] >= width,
        "experts_per_token <= experts": rows["experts_per_token"] > rows["experts"],
        "dense_layers <= layers": rows["dense_layers"] > rows["layers"],
        "full_attention_layers <= layers": rows["full_attention_layers"] > rows["layers"],
        "experts a multiple of ep": rows["experts"] % rows["ep"] != 0,
        "dp * cp * tp a multiple of ep * etp": dp * cp * tp % (rows["ep"].astype(np.float64) * etp) != 0,
        "dp a multiple of hpz": rows["dp"] % rows["hpz"] != 0,
        "dp a multiple of shard": (rows["shard"] > 0) & (rows["dp"] % rows["shard"].clip(lower=1) != 0),
    }
    return {rule: mask.to_numpy() for rule, mask in broken.items()}


def illegal(rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Return a mask of the checked rows that no framework can run, shape (n,): they break one of the rules of `broken_rules`."""
    broken: NDArray[np.bool_] = np.any([*broken_rules(rows).values()], axis=0)
    return broken


def by_kind(rows: pd.DataFrame) -> Iterator[tuple[str, str, NDArray[np.intp]]]:
    """Yield each device and framework of checked rows, with the positions of their rows."""
    for kind, positions in rows.groupby(["device", "framework"]).indices.items():
        device, framework = cast(tuple[str, str], kind)
        yield device, framework, np.asarray(positions)


def workload_of_rows(rows: pd.DataFrame) -> Workload:
    """Return the workload of rows that are checked and legal; raises InputError if a device's or a framework's file is invalid."""
    models, which_model = _distinct(rows, [*MODEL, "gated", "tied", "experts", "experts_per_token", *WIDTHS])
    machines, which_machine = _distinct(rows, ["device", "precision", "gpus_per_node", "framework"])
    formats, which_format = _distinct(rows, ["device", "precision", "framework", "optimizer", "trained", "weights"])
    return Workload(
        shape=ModelFacts(**_spread([shape_facts(_model(**values)) for values in models], which_model)),
        layout=_layout(rows),
        machine=DeviceFacts(**_spread([_machine(**values) for values in machines], which_machine)),
        formats=FormatFacts(**_spread([_formats(**values) for values in formats], which_format)),
    )


def _model(*, head_dim: int, **dimensions: Any) -> Model:
    own = 0 if head_dim * dimensions["heads"] == dimensions["hidden"] else head_dim
    no_experts = dict.fromkeys(OF_EXPERTS, 0) if dimensions["experts"] == 1 else {}
    return Model(head_width=own, **{**dimensions, **no_experts})


def _layout(rows: pd.DataFrame) -> ConfigurationFacts:
    degrees = ("dp", "tp", "pp", "model_chunks", "cp", "ep", "etp", "shard", "hpz")
    words = ("recompute", "dispatcher", "gradients", "moments", "attention", "loss", "residuals", "norms", "expert_products", "offload")
    names = (*degrees, *words, "sequence_parallel", "recompute_layers", "recompute_modules", *LAYOUT_FLAGS)
    columns: dict[str, Any] = {name: rows[name].to_numpy() for name in names}
    alone = (rows["dp"] * rows["cp"] == 1) & (rows["offload"] != "parameters")  # a single replica has nothing to shard, but to offload
    columns |= {"zero_stage": np.where(alone, 0, rows["zero"]), "micro_batch": rows["mbs"].to_numpy()}
    columns["num_microbatches"] = (rows["gbs"] // (rows["dp"] * rows["mbs"])).to_numpy()
    usual = rows["framework"].map({name: load_framework(name).usual("cp_mode") for name in rows["framework"].unique()})
    columns["cp_mode"] = rows["cp_mode"].where(rows["cp_mode"] != "", usual).replace(ALSO).to_numpy()
    return layout_of(columns, balanced=_balanced(rows))


def _balanced(rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Return in which rows the output projection counts when stages are cut, shape (n,): as stated, or as the row's framework does."""
    usual = rows["framework"].map({name: load_framework(name).balanced_stages for name in rows["framework"].unique()})
    return np.where(rows["stage_layout"] != "", rows["stage_layout"] == BALANCED, usual).astype(bool)


def _machine(device: str, precision: str, gpus_per_node: int, framework: str) -> dict[str, float]:
    hardware = load_hardware(device)
    precision = precision or hardware.default_precision
    emulated = precision == BF16 and BF16 not in hardware.matmul_flops_per_s  # a job's bf16 may stand for fp16, a row's does not
    facts = machine_facts(hardware, "fp32" if emulated else precision)
    linked = hardware.link_devices if hardware.link_devices > hardware.devices_per_host else gpus_per_node
    usable = hardware.memory_bytes * (load_framework(framework).usable_share if hardware.asynchronous else 1)
    return {**facts, "devices_per_host": linked, "usable_bytes": usable}


def _formats(device: str, precision: str, framework: str, optimizer: str, trained: str, weights: str) -> dict[str, float]:
    precision, frozen = precision or load_hardware(device).default_precision, FROZEN_BYTES[weights] if trained != "all" else None
    return format_facts(load_framework(framework), precision, optimizer=optimizer, trained=TRAINED[trained], frozen_bytes=frozen)


def _distinct(rows: pd.DataFrame, columns: list[str]) -> tuple[list[dict[str, Any]], NDArray[np.integer]]:
    """Return the distinct combinations of values in some columns, and for each row the index of its own."""
    numbers = rows.groupby(columns, sort=False).ngroup().to_numpy()
    _, first = np.unique(numbers, return_index=True)
    values = [rows[name].to_numpy()[first].tolist() for name in columns]
    return [dict(zip(columns, each, strict=True)) for each in zip(*values, strict=True)], numbers


def _spread(facts: list[dict[str, float]], which: NDArray[np.integer]) -> dict[str, Tensor]:
    """Return one float64 column per fact; row i takes the facts at index `which[i]`."""
    return {name: torch.from_numpy(np.array([float(each[name]) for each in facts])[which]) for name in facts[0]}


def _whole_numbers(column: pd.Series, *, least: int, most: int = LARGEST, default: int | None = None) -> pd.Series:
    def read(cells: pd.Series) -> pd.Series:
        numbers = pd.to_numeric(cells if default is None else _filled(cells, str(default)), errors="coerce")
        return numbers.where(numbers.between(least, most) & (numbers % 1 == 0))

    return _checked(column, read, lambda _: f"write a whole number from {least} to {most:,}").astype(np.int64)


def _words(column: pd.Series, known: Sequence[str], *, default: str) -> pd.Series:
    def read(cells: pd.Series) -> pd.Series:
        words = _filled(cells, default)
        return words.where(words.isin([*known, default]))

    return _checked(column, read, lambda word: HIERARCHICAL.get(word.casefold(), nearest(word, filter(None, known))))


def _modules(column: pd.Series) -> pd.Series:
    """Return the modules of each cell, joined by plus signs."""

    def read(cells: pd.Series) -> pd.Series:
        named = _filled(cells, CORE).str.findall(r"[^+,\s]+")
        return named.map(lambda words: "+".join(sorted(words)) if {*words} <= {*MODULES} else None)

    return _checked(column, read, lambda words: f"join some of {', '.join(MODULES)} by `+`")


def _devices(column: pd.Series) -> pd.Series:
    """Return the device ids of the catalogue for a column of ids and aliases."""

    def read(cells: pd.Series) -> pd.Series:
        return cells.astype("str").fillna("").map(identify)

    return _checked(column, read, _device_hint)


def _device_hint(name: str) -> str:
    several = ", ".join(f"`{device.id}`" for device in sharing(name))
    return f"name one of {several}" if several else nearest(name, devices())


def _flags(column: pd.Series, *, default: bool | pd.Series) -> pd.Series:
    def read(cells: pd.Series) -> pd.Series:
        words = _filled(cells, "empty")
        return words.map({"true": 1, "false": 0, "1": 1, "0": 0, "1.0": 1, "0.0": 0, "empty": -1})

    flags = _checked(column, read, lambda _: "write true or false")
    return flags.where(flags >= 0, default).astype(bool)


def _filled(cells: pd.Series, default: str) -> pd.Series:
    """Return the cells as text in lower case without spaces around it, with the default in place of empty ones."""
    words = cells.astype("str").fillna("").str.strip().str.casefold()
    return words.where(~cells.isna() & (words != "") & (words != "nan"), default)


def _checked(column: pd.Series, read: Callable[[pd.Series], pd.Series], hint: Callable[[str], str]) -> pd.Series:
    """Convert a column with `read`, which returns NaN for each invalid value.

    `read` gets each distinct value once, because a million rows have few of them.

    Raises:
        InputError: a value is invalid; the message names the first, with its line if the index counts lines below the header from 0,
            else with its label.
    """
    codes, distinct = pd.factorize(column, use_na_sentinel=False)
    values = read(pd.Series(distinct, dtype=object))  # whatever holds the column: Arrow has no remainder
    if values.isna().any():
        label, cell = next(column[values.isna().to_numpy()[codes]].items())
        word = str(cell) if pd.notna(cell) else ""
        place = f"line {label + 2}" if isinstance(label, int | np.integer) else f"row `{label}`"
        raise InputError(f"{place}: `{column.name} = {word}`" if word else f"{place}: `{column.name}` is empty", hint=hint(word))
    return values.take(codes).set_axis(column.index)
