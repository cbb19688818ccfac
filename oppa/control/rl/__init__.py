"""Set each worker's batch by a policy trained with reinforcement learning (DYNAMIX): observations, actions, reward and training."""
