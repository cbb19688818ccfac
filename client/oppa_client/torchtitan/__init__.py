"""Train with torchtitan's `Trainer` under oppa: batch and accumulation follow the plan, and everything that counts goes by samples.

    from oppa_client.torchtitan import OppaTrainer        # before torchtitan's own modules

    trainer = OppaTrainer(ConfigManager().parse_args(), dataset, save_every=5000)
    trainer.train()
    trainer.close()

Outside oppa it trains with the batch and the steps of its configuration. Samples are numbered from the start of the run. Sample n is
element n % size of the shuffled order of epoch n // size, whatever the batch and the layout.
"""

from oppa_client.torchtitan.cpu import allow_cpu

allow_cpu()  # torchtitan chooses its device when it is imported

from oppa_client.torchtitan.trainer import OppaTrainer  # noqa: E402

__all__ = ["OppaTrainer"]
