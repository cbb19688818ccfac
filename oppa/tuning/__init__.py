"""Chooses the configuration to try next, runs the search, and verifies the winner."""
