"""Which configuration to try next, the loop that tries it, and the proof that the winner is one."""
