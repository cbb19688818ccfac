"""A configuration has derived numbers and a readable id, and survives JSON."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppa.problem.configuration import Configuration

BASE = Configuration(dp=2, tp=1, pp=2, global_batch=32, micro_batch=4, zero_stage=1, model_chunks=2, recompute="full")


def test_the_id_reads_like_the_configuration() -> None:
    assert BASE.id == "dp2_tp1_pp2_z1_mbs4_mc2_rcfull"
    assert (BASE.devices, BASE.num_microbatches) == (4, 4)


@pytest.mark.parametrize("change", [{"dp_bucket_mb": 100}, {"overlap_p2p": True}, {"schedule": "zb-v"}, {"ep": 2}])
def test_every_other_value_shows_in_the_id(change: dict[str, object]) -> None:
    assert dataclasses.replace(BASE, **change).id.startswith("dp2_tp1_pp2_")
    assert dataclasses.replace(BASE, **change).id != BASE.id


@given(
    st.builds(
        Configuration, dp=st.integers(1, 64), global_batch=st.integers(1, 4096), micro_batch=st.integers(1, 64), overlap_p2p=st.booleans()
    )
)
def test_json_gives_it_back(configuration: Configuration) -> None:
    assert Configuration.from_dict(json.loads(json.dumps(configuration.to_dict()))) == configuration
