"""Implement the launcher `local`: trials run as processes of this host."""

import contextlib
from collections.abc import Iterator

from oppa.launchers.provider import Backend, HostRequest, WaitingTuner, require_one_trial
from oppa.trials.host import require_devices


class LocalProvider:
    """Provides this host; the launcher `local`."""

    options = ()

    def require(self, request: HostRequest) -> None:
        """Refuse several hosts, more devices than this host has, and parallel trials."""
        require_one_trial(request)
        require_devices(request.cluster)

    @contextlib.contextmanager
    def open(self, request: HostRequest, tuner: WaitingTuner) -> Iterator[Backend]:
        """Yield this host at once."""
        yield Backend()
