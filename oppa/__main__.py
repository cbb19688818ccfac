"""Start the command line, as `oppa` or `python -m oppa`. Ctrl-C ends it without a traceback, also while it still loads."""

import sys


def main() -> None:
    """Load the command line and run it."""
    try:
        from oppa import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
