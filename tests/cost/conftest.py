"""Provide workloads of all kinds: rows of a table, and the space of a framework."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd
import pytest

from experiments import published
from oppa import catalog
from oppa.cost.prediction import predict_rows
from oppa.cost.rows import check_rows, workload_of_rows
from oppa.cost.workload import Workload
from oppa.problem.cluster import Cluster
from oppa.problem.presets import PRESETS
from oppa.problem.problem import Problem, facts_of
from oppa.problem.space_file import narrow, read_space
from oppa.problem.training import Limits, Training

ROW = {
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 14336,
    "vocab": 128256,
    "seq_len": 4096,
    "device": "H100",
    "gpus": 64,
    "gpus_per_node": 8,
    "gbs": 512,
    "mbs": 1,
    "dp": 8,
    "tp": 4,
    "pp": 2,
    "model_chunks": 1,
    "zero": 1,
    "recompute": "none",
}
TIME, MEMORY = "predicted_step_time_s", "predicted_memory_bytes"


def predicted(*changes: dict[str, object]) -> pd.DataFrame:
    """Predictions of a usual row with changes, on as many devices as its degrees make up."""
    rows = pd.DataFrame([{**ROW, "cp": 1, **change} for change in changes])
    return predict_rows(rows.assign(gpus=rows["dp"] * rows["tp"] * rows["pp"] * rows["cp"]))


def rows_of(*changes: dict[str, object]) -> pd.DataFrame:
    """A row for each change of a usual one; the devices follow from dp, tp and pp."""
    rows = [{**ROW, **change} for change in changes]
    return pd.DataFrame([{**row, "gpus": row["dp"] * row["tp"] * row["pp"]} for row in rows])


def work_of(*changes: dict[str, object]) -> Workload:
    return workload_of_rows(check_rows(rows_of(*changes)))


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Write a file of priors; return its path, which the loaders take for a name."""

    def write_(text: str) -> str:
        (tmp_path / "bad.toml").write_text(text)
        return str(tmp_path / "bad.toml")

    return write_


@pytest.fixture
def framework_problem() -> Callable[..., Problem]:
    """A job in the space of a framework."""

    def make(
        space: str,
        *,
        model: str = "llama-3.2-1b",
        hosts: int = 2,
        global_batch: int = 64,
        precision: str = "bf16",
        given: Mapping[str, object] | None = None,
    ) -> Problem:
        cluster = Cluster(hosts=hosts, devices_per_host=8, device="H100", memory_limit_bytes=80 * 2**30)
        training = Training(precision=precision)
        facts = facts_of(PRESETS[model], global_batch, cluster, training)
        declared = read_space(catalog.find("search_spaces", space).read_text(), name=space, facts=facts)
        declared = narrow(declared, given or {}, honoured=declared.names, runner=space)
        return Problem(
            name="job",
            stated_model=PRESETS[model],
            global_batch=global_batch,
            cluster=cluster,
            runner=Path(space),
            training=training,
            space=declared,
            limits=Limits(),
        )

    return make


@pytest.fixture(scope="session")
def published_data() -> None:
    """Skip tests that need published measurements, with a message, if these are not there."""
    if lacking := published.missing():
        pytest.skip(f"NOT TESTED against published measurements: `{catalog.data_folder()}` lacks {', '.join(lacking)} (set OPPA_DATA)")
