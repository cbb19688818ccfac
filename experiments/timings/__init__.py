"""Time the tool itself, as ratios measured side by side: its help, the start of trials, this machine, and a step of a designer."""
