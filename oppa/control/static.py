"""Implement the policy that never changes anything."""

from oppa.control.decision import Decision, Policy, Situation, stay


class StaticPolicy(Policy):
    """Keeps the initial configuration."""

    def decide(self, situation: Situation) -> Decision:
        """Return a No-Op."""
        return stay(situation, "the policy is static")
