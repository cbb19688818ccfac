"""Leave the caller's torch as it was: surrogates compute in one thread, and a notebook trains on afterwards."""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def torch_threads_kept() -> Iterator[None]:
    """Restore the number of torch's threads at the end. Torch may be loaded inside, and is not loaded here."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else None
    try:
        yield
    finally:
        if (torch := sys.modules.get("torch")) is not None:
            from oppa.tuning.surrogate.threads import first_threads

            torch.set_num_threads(first_threads() if before is None else before)
