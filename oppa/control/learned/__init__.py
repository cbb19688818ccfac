"""A batch for each worker by a policy that was learned (DYNAMIX): what it sees, what it may do, how it is rewarded, and how it learns."""
