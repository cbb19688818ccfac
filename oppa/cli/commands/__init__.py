"""Define the commands: each parses its options, calls the work, and gives the result to a view."""
