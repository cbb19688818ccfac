"""Run elastic jobs on a real cluster: a spool stores them, `oppa train` trains them, and the scaling controller changes their size."""
