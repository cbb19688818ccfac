"""Measure the time to a target loss under each policy: the runs, their results, and the figures."""
