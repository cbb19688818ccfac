"""torchtitan's own program on CPUs; it notes when its steps end."""

import writing
from oppa_client.torchtitan import cpu  # it makes the CPU torchtitan's device, and therefore comes before torchtitan
from torchtitan.train import main
from torchtitan.trainer import Trainer


class OnCpu(Trainer):
    """Sums gradients as gloo can, and notes the end of each step."""

    def __init__(self, config):
        super().__init__(config)
        for part in self.model_parts:
            cpu.sum_on_gloo(part)

    def train_step(self, data_iterator):
        super().train_step(data_iterator)
        writing.end_step()


if __name__ == "__main__":
    Trainer.Config._owner = OnCpu  # what a configuration of torchtitan builds
    main()
