"""Time to a target loss under each policy: the runs, what they come to, and their figures."""
