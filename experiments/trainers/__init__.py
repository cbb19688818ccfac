"""Compare users' own trainers under `oppa train` with the same training without it."""
