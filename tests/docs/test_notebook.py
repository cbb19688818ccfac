"""The notebook runs from its first cell to its last, and is stored without outputs."""

import json
import sys
from pathlib import Path

import matplotlib as mpl
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = json.loads((ROOT / "examples" / "explore_study.ipynb").read_text())
CELLS = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def test_it_is_stored_without_outputs() -> None:
    assert not any(cell["outputs"] or cell["execution_count"] for cell in CELLS)


@pytest.mark.slow
def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpl.use("agg")
    monkeypatch.chdir(tmp_path)
    for linked in ("runners", "search_spaces"):
        (tmp_path / linked).symlink_to(ROOT / linked)
    names: dict[str, object] = {"__name__": "notebook"}
    monkeypatch.setitem(sys.modules, "notebook", type(sys)("notebook"))
    for cell in CELLS:
        exec("".join(cell["source"]), names)
    assert (tmp_path / "studies" / "explored" / "study.db").is_file()
    assert len(names["frame"]) > len(names["known"]) > 0
    assert set(names["summaries"]) == {"throughput", "memory"}
