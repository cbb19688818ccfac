"""Display the progress of long commands on stderr: in place on a terminal, one line per step elsewhere."""

import contextlib
from collections.abc import Callable, Iterator

from rich.markup import escape

from oppa.cli.views import style


@contextlib.contextmanager
def showing_status() -> Iterator[Callable[[str], None]]:
    """Yield a function that displays the description of each step that begins."""
    with style.err().status("starting") as status:

        def tell(what: str) -> None:
            status.update(escape(what))
            if not style.err().is_terminal:
                style.err().print(what, markup=False)

        yield tell
