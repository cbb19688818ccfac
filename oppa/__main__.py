"""`python -m oppa`."""

from oppa.cli import main

main()
