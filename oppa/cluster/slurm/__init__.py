"""Run elastic jobs on Slurm: a spool stores them, `oppa train` trains them, and the scaling controller changes their size."""
