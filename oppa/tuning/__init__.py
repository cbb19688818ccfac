"""Choose the configuration to try next, run the search, and verify the winner."""
