"""Define small convolutional networks for handwritten digits, in parts: a stem, residual blocks (He et al. 2016), a classifier."""

from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """A residual block of two 3 x 3 convolutions."""

    def __init__(self, channels):
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.before, self.between = (nn.GroupNorm(4, channels) for _ in range(2))

    def forward(self, x):
        """Return a tensor of the input's shape, (images, channels, height, width)."""
        return x + self.second(F.relu(self.between(self.first(F.relu(self.before(x))))))


class Residual:
    """The entry point: `layers` blocks of `hidden` channels, normalised over groups of channels.

    Batches are not normalised, so that workers may have batches of any size.
    """

    def __init__(self, model):
        self.model = model

    def embed(self):
        """Return the stem, which halves height and width."""
        return nn.Conv2d(3, self.model.hidden, 3, stride=2, padding=1)

    def block(self, index):
        """Return one of `layers` blocks."""
        return Block(self.model.hidden)

    def head(self):
        """Return the classifier, which gives scores of shape (images, classes)."""
        pooled = nn.Sequential(nn.GroupNorm(4, self.model.hidden), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return nn.Sequential(pooled, nn.Linear(self.model.hidden, self.model.vocab))

    def loss(self, output, targets):
        """Return the mean loss of the given images."""
        return F.cross_entropy(output, targets)
