"""Where trials run beyond this host: allocations of Slurm, and hosts that one machine plays."""
