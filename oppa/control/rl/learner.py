"""Train the policy network by gradient steps, and convert it from and to weights.

The paper's simplification of PPO uses the cumulative reward of an episode directly, without clipping or advantages (DYNAMIX, section IV-A):

    theta  +=  rate * mean of G grad log pi(a | s)        G = sum over windows u >= t of gamma^(u - t) r_u

The caller of `update` may subtract a baseline from each G first. Actions are then compared by their own contribution, not by how well the
run goes anyway. The paper subtracts none.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Array = NDArray[np.float64]

HIDDEN = (64, 64)
"""Widths of the hidden layers."""
RATE = 3e-3
"""Default learning rate."""
GAMMA = 0.9
"""Discount factor per window."""


def network(observed: int, actions: int) -> nn.Sequential:
    """Build a network from normalised observations (n, observed) to logits (n, actions)."""
    sizes = (observed, *HIDDEN)
    layers: list[nn.Module] = []
    for into, out in itertools.pairwise(sizes):
        layers += [nn.Linear(into, out), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], actions)).double()


def layers_of(module: nn.Sequential) -> tuple[tuple[Array, Array], ...]:
    """Return copies of the weight and bias of each linear layer."""
    linear = [layer for layer in module if isinstance(layer, nn.Linear)]
    return tuple((layer.weight.detach().double().numpy().copy(), layer.bias.detach().double().numpy().copy()) for layer in linear)


def module_of(layers: Sequence[tuple[Array, Array]]) -> nn.Sequential:
    """Build a network from the weight and bias of each layer; the inverse of `layers_of`."""
    made = network(layers[0][0].shape[1], layers[-1][0].shape[0])
    linear = [layer for layer in made if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for layer, (weight, bias) in zip(linear, layers, strict=True):
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
    return made


class Learner:
    """Trains a network with an Adam optimizer."""

    def __init__(self, module: nn.Sequential, *, rate: float = RATE) -> None:
        self.module = module
        self._optimizer = torch.optim.Adam(module.parameters(), lr=rate)

    def probabilities(self, observations: Array) -> Array:
        """Return the probability of each action, shape (n, actions)."""
        with torch.no_grad():
            return np.asarray(torch.softmax(self.module(torch.from_numpy(observations)), 1).numpy())

    def update(self, observations: Array, chosen: Sequence[int], worth: Array) -> None:
        """Take one gradient step towards actions of higher worth.

        Args:
            observations: Normalised observations, shape (n, d).
            chosen: Number of the action of each row, shape (n,).
            worth: Cumulative reward of each row, less a baseline if any, shape (n,).
        """
        likely = torch.log_softmax(self.module(torch.from_numpy(observations)), 1)
        own = likely.gather(1, torch.tensor(chosen).unsqueeze(1)).squeeze(1)
        loss = -(torch.from_numpy(worth) * own).mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


def cumulative(rewards: Array, gamma: float = GAMMA) -> Array:
    """Return the discounted cumulative reward G of each window, shape (windows, n) like the rewards."""
    found, following = np.zeros_like(rewards), np.zeros(rewards.shape[1])
    for window in reversed(range(len(rewards))):
        found[window] = following = rewards[window] + gamma * following
    return found
