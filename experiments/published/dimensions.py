"""Give rows the dimensions of their models."""

from collections.abc import Mapping
from typing import Any

import pandas as pd


def dimensions_of(names: pd.Series, models: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Return the dimensions of each row's model, with the index of `names`."""
    return pd.DataFrame([models[name] for name in names], index=names.index)


def gpt(layers: int, hidden: int, heads: int) -> dict[str, int]:
    """Return the dimensions of GPT's blocks: each head has its own keys and values, and the feed-forward network is 4 times as wide."""
    return {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": heads, "ffn": 4 * hidden}
