"""The benchmark of the control service, on a smaller scale."""

import json

import pytest

from experiments.service import run
from oppa.errors import ProtocolError
from oppa.protocol.messages import from_job

SMALL = run.Load(rows=200, decisions=50, jobs=30, seconds=2, malformed=320, kills=2, between_kills_s=0.5, journal=1000)


@pytest.mark.parametrize("text", list(run._malformed()))
def test_what_it_sends_as_damage_is_damaged(text) -> None:
    with pytest.raises(ProtocolError):
        from_job(text)


@pytest.mark.slow
def test_nothing_is_lost_and_nothing_crashes() -> None:
    progress: list[str] = []
    found = run.measure(progress.append, SMALL)
    figures = json.loads(json.dumps(found.to_dict()))
    assert figures["messages"] == 60 and figures["messages_lost"] == figures["malformed_crashes"] == figures["steps_unknown"] == 0
    assert figures["kills"] == 2 and 0 < figures["blocked_share"] < 1
    assert 0 < figures["decision_p50_ms"] <= figures["decision_p99_ms"] and 0 < figures["service_p50_ms"] <= figures["service_p99_ms"]
    assert figures["journal_messages"] == 1000 and figures["start_s"] > 0 and figures["replay_s"] > 0
    assert len(progress) == 5 and len(found.section.rows) == 8
