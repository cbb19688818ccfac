"""Write the events that a program reports to the tuner, as one line of JSON each."""

import json
import sys
from typing import Any

LOST, LEAVING = "lost", "leaving"
"""Events that a host is gone, and with it perhaps its agent; and that an agent was signalled to end, before a host is withdrawn."""


def write_event(event: str, **facts: Any) -> None:
    """Write an event to stdout, as one line of JSON."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()
