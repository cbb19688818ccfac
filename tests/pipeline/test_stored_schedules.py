"""A schedule is stored by its configuration."""

from pathlib import Path

import pytest

from oppa.errors import InputError
from oppa.pipeline.registry import build_schedule
from oppa.pipeline.stored_schedules import copy, forget, store, stored
from oppa.pipeline.torch_csv import to_csv
from oppa.problem.configuration import Configuration

SEARCHED = Configuration(dp=1, pp=4, global_batch=8, micro_batch=1, schedule="search")
PASSES = build_schedule("zb-h1", ranks=4, micro_batches=8)


def test_what_is_stored_is_found_by_its_configuration(tmp_path: Path) -> None:
    assert stored(tmp_path, SEARCHED) == ""
    store(tmp_path, SEARCHED, PASSES)
    assert stored(tmp_path, SEARCHED) == to_csv(PASSES)
    others = (
        Configuration(dp=1, pp=2, global_batch=8, micro_batch=1, schedule="search"),
        Configuration(dp=1, pp=4, global_batch=16, micro_batch=1, schedule="search"),
        Configuration(dp=1, pp=4, global_batch=8, micro_batch=1, schedule="search", stage_layout="Et*3|t|tt|ttL"),
    )
    assert [stored(tmp_path, each) for each in others] == ["", "", ""]
    store(tmp_path, SEARCHED, build_schedule("1f1b", ranks=4, micro_batches=8))
    assert "W" not in stored(tmp_path, SEARCHED)


def test_orders_are_copied_where_there_are_some(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    copy(tmp_path / "one", tmp_path / "other")
    assert not (tmp_path / "other").exists()
    store(tmp_path / "one", SEARCHED, PASSES)
    copy(tmp_path / "one", tmp_path / "other")
    assert stored(tmp_path / "other", SEARCHED) == to_csv(PASSES)
    forget(tmp_path / "one")
    assert stored(tmp_path / "one", SEARCHED) == ""


@pytest.mark.parametrize(("text", "said"), [("0F0,0B0\n", "another pipeline"), ("what\n", "is not an action"), ("", "has no actions")])
def test_what_is_no_order_of_this_pipeline_is_refused(text: str, said: str, tmp_path: Path) -> None:
    store(tmp_path, SEARCHED, PASSES)
    (path,) = (tmp_path / "orders").iterdir()
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        stored(tmp_path, SEARCHED)
