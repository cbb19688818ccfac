"""Text that is printed contains nothing that a terminal obeys, and nothing that makes it read unlike its characters."""

import pytest

from oppa.plain_text import plain_text


@pytest.mark.parametrize("hidden", ["\x1b", "\0", "\x85", "\udc80", "\u202e", "\u2066", "\u2069"])
def test_a_character_that_a_reader_cannot_see_is_replaced(hidden: str) -> None:
    assert plain_text(f"H{hidden}100") == "H\ufffd100"


@pytest.mark.parametrize("text", ["two\nlines\tand a tab", "größer 快 שלום", "👩‍🔧"])
def test_text_of_any_script_stays(text: str) -> None:
    assert plain_text(text) == text
