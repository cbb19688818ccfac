"""Share among experiments: recorded runs and their pages, pools of ranks, and published measurements."""
