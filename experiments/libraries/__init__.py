"""Tune launch lines of real libraries: the winner among all configurations, and what trials write."""
