"""The catalog: names and paths find files; what is missing is answered with the nearest."""

from pathlib import Path

import pytest

from oppa import catalog
from oppa.errors import InputError


def test_the_catalog_has_a_space_for_each_framework() -> None:
    assert {"torch", "deepspeed", "colossalai", "megatron"} <= set(catalog.names("search_spaces"))


@pytest.mark.parametrize("kind", ["search_spaces", "runners"])
def test_every_name_is_found(kind: str) -> None:
    for name in catalog.names(kind):
        assert catalog.find(kind, name).exists()


def test_a_path_is_relative_to_the_folder_given(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert catalog.find("runners", "./mine", beside=tmp_path) == tmp_path / "mine"


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError) as raised:
        catalog.find("search_spaces", "megatorn")
    assert raised.value.message == "`megatorn` is none of the search spaces"
    assert raised.value.hint == "did you mean `megatron`?"


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        catalog.find("runners", "./no", beside=tmp_path)
