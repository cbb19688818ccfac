"""Train a job to its end in the folder of a run, under a policy if one is chosen."""
