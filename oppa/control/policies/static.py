"""Implement the policy that never changes anything."""

from oppa.control.decision import Decision, JobState, Policy, stay


class StaticPolicy(Policy):
    """Keeps the initial configuration."""

    def decide(self, state: JobState) -> Decision:
        """Return a No-Op."""
        return stay(state, "the policy is static")
