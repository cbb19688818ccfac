"""Measure the control service under load."""
