"""What a command of minutes is at: in place on a terminal, a line each elsewhere; to stderr."""

import contextlib
from collections.abc import Callable, Iterator

from oppa.cli import style


@contextlib.contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """What to call with each new thing that is begun, while this lasts."""
    with style.err().status("starting") as status:

        def tell(what: str) -> None:
            status.update(what)
            if not style.err().is_terminal:
                style.err().print(what, markup=False)

        yield tell
