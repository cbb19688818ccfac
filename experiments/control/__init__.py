"""Measure gradient statistics, layout changes and profiles on real ranks (COPUS)."""
