"""Run the command line as `python -m oppa`."""

from oppa.cli import main

main()
