"""Train weights for some steps, and compare them with those of another layout."""

from pathlib import Path

import torch

from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from tests.training.rank_pool import RankPool, chain


def weights_after(pool: RankPool, configuration: Configuration, model: Model, path: Path) -> dict[str, torch.Tensor]:
    """SGD with clipping: Adam's first steps are the signs of gradients, also of those that are zero but for rounding."""
    training = {"optimizer": "sgd", "learning_rate": 0.3, "gradient_clipping": 1.0}
    pool.chain(chain(model, [configuration], [4], training=training, weights=str(path)))
    found: dict[str, torch.Tensor] = torch.load(path)
    return found


def differing(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    """Names of weights that differ by more than the order of float32 sums explains."""
    assert one.keys() == other.keys()
    return [name for name in one if not torch.allclose(one[name], other[name], rtol=1e-4, atol=2e-6)]
