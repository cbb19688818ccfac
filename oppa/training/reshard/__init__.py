"""Move a training state between two parallel layouts, in process."""
