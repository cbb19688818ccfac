"""Search for the schedule whose longest span is shortest, given the times of nodes and the memory limits of ranks."""
