"""The values of an option that is declared as a list belong to it, and a token of a tokenizer is no path."""

import shlex

import pytest

from oppa.problem.stated_words import looks_like_path
from oppa.problem.writes import harmless


@pytest.mark.parametrize(
    "words",
    [
        "--dataset AI-ModelScope/alpaca-zh#500 swift/self-cognition#500",
        "--modules_to_save embed_tokens lm_head",
        "--lora_target_modules model/a model/b",
    ],
)
def test_every_value_of_a_list_of_data_is_read(words) -> None:
    found = harmless("transformers", ["python", "train.py", *shlex.split(words), "--output_dir", "out"])
    assert not found.unknown and words in shlex.join(found.words).replace("'", "")


@pytest.mark.parametrize("token", ["</s>", "<|im_end|>", "<pad>"])
def test_a_token_is_no_path(token) -> None:
    assert not looks_like_path(token) and looks_like_path("a/<b>")
