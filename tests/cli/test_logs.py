"""A line of the log that cannot be written ends nothing."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import logging
from oppa.cli.logs import show_logs
show_logs(0)
logging.getLogger("oppa.trials").warning("a rank is late")
print("goes on", flush=True)
"""


def test_a_full_disk_under_the_log_does_not_end_the_program() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=full, text=True, timeout=60, check=False)
    assert done.stdout == "goes on\n"
