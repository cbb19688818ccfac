"""Sliding-window attention in the predictions of rows."""

import pytest

from tests.cost.conftest import ROW, TIME, predicted

LONG = {"tp": 1, "pp": 1, "seq_len": 131072, "gbs": 8, "framework": "megatron", "cp": 8, "dp": 1}


def test_a_window_saves_time_in_the_layers_that_have_it() -> None:
    slides = [{**LONG, "sliding_window": 1024, "full_attention_layers": layers} for layers in (0, 5, ROW["layers"])]
    none, few, every, whole, short = predicted(*slides, LONG, {**LONG, "sliding_window": 131072})[TIME]
    assert none < few < every == pytest.approx(whole) and short == whole
    assert whole > 2 * few
