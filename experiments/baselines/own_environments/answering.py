"""Answer requests that come as JSON lines on stdin, until it ends."""

import json
import os
import sys
from collections.abc import Callable


def serve(suggest: Callable[..., int]) -> None:
    """Write a line when ready, and then the suggestion for each request."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints must not mix with the answers
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps({"candidate": suggest(**json.loads(line))}), file=answers, flush=True)
