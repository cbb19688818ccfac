"""Use Slurm as the scheduler of elastic jobs."""
