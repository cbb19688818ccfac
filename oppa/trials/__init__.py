"""Run one configuration as a trial, until it ends by itself or is ended."""
