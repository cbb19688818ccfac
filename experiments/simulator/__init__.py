"""Compare the simulator with published measurements."""
