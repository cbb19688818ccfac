"""Time and memory of a training step from first principles: what is believed of a configuration before it is tried."""
