"""Search for the schedule whose longest span is shortest, given the times of actions and the memory limits of ranks."""
