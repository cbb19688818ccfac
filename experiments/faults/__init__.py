"""Attack oppa with hostile files, trials and messages, and count what breaks."""
