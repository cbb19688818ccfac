"""Start the command line, as `oppa` or `python -m oppa`. A request to stop ends it without a traceback, also while it still loads."""

import sys

try:
    from oppa import stop_request
except KeyboardInterrupt:
    sys.exit(130)


def main() -> None:
    """Load the command line and run it; exit with code 130 if a stop is requested, and ignore later requests."""
    try:
        stop_request.follow()
        from oppa import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        stop_request.ignore()


if __name__ == "__main__":
    main()
