"""Run trials beyond this host: in Slurm allocations, and on several hosts emulated by one machine."""
