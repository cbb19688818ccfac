"""What the experiments share: recorded runs and their pages, pools of ranks, and published measurements."""
