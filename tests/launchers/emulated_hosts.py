"""Check if this machine can emulate several hosts."""

import pytest

from oppa.launchers.emulation.netlab import netlab_lacking

LACKING = "; ".join(netlab_lacking())
needs_hosts = pytest.mark.skipif(bool(LACKING), reason=f"hosts cannot be emulated here: {LACKING}")
