"""The policy that changes nothing."""

from oppa.control.decision import Decision, Policy, Situation, stay


class StaticPolicy(Policy):
    """A job stays as it began."""

    def decide(self, situation: Situation) -> Decision:
        """Nothing."""
        return stay(situation, "the policy is static")
