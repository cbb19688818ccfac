"""The format in which a program prints its steps is recognised by two lines, and the first of these counts as well."""

import importlib.util

import pytest

from oppa import catalog

_spec = importlib.util.spec_from_file_location("recognition", catalog.root() / "runners" / "command" / "recognition.py")
recognition = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(recognition)


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        (["step 1 | loss 2.5 | 85.3 ms", "step 2 | loss 2.4 | 85.1 ms"], "step-ms"),
        (["Iter: 3, 0.085s", "Iter: 4, 0.086s"], "step-s"),
        (["  1%| | 1/100 [00:01<00:09,  9.71it/s]", "  2%| | 2/100 [00:01<00:09,  9.71it/s]"], "progress-bar"),
        (["speed 0.5 s/it", "speed 0.6 sec / step"], "s-per-step"),
        (["11.7 it/s", "11.9 steps/s"], "steps-per-s"),
        (["12,345 tokens/s", "throughput: 1.2e4 tok/sec"], "tokens-per-s"),
        (["{'loss': '2.5', 'epoch': 1}", "{'loss': 2.4, 'epoch': 1}"], "hf-trainer"),
    ],
)
def test_a_usual_format_is_recognised_by_two_lines(lines, name):
    seen = recognition.Recognition()
    assert seen.read(["loading", "step one of the setup"], 1.0) == [] and seen.read(lines[:1], 2.0) == []
    assert seen.read(["between", *lines[1:]], 3.0) == [(lines[:1], 2.0), (lines[1:], 3.0)]
    assert seen.name == name


@pytest.mark.slow
def test_text_that_states_no_step_is_none_and_is_not_kept():
    seen = recognition.Recognition()
    for line in ("epochs: 3", "learning rate 1e-3", "saved in 3.2 s", "x" * 100_000, "step 1 " * 100_000, "1 step"):
        assert seen.read([line] * 100, 1.0) == []
    assert not seen.lines and not seen.name
