"""Simulate trials in process, on a simulated clock, from recorded measurements or from first principles."""
