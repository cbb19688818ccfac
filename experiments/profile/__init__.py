"""Compare an active profile with an exhaustive one."""
