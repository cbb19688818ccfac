"""The page of published launch lines is what its command prints."""

import pytest

from experiments.launch_lines import page, published_lines
from tests.docs.conftest import DOCS


@pytest.mark.slow
def test_the_page_is_what_its_command_prints() -> None:
    lines = published_lines()
    assert (DOCS / "reference" / "launch-lines.md").read_text() == page(lines)
    assert sum(each.is_recognised for each in lines) >= 24 and not any(each.is_wrong for each in lines)
