"""Write the events that a program reports to the tuner, as one line of JSON each."""

import json
import sys
from typing import Any


def write_event(event: str, **facts: Any) -> None:
    """Write an event to stdout, as one line of JSON."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()
