"""Train with Lightning under oppa: the batch follows the run's plan, and everything that counts goes by samples.

    from oppa_client.lightning import OppaTrainer

    trainer = OppaTrainer(max_epochs=3, ...)             # the arguments of `Trainer`
    trainer.fit(module, DataLoader(dataset, batch_size=8, shuffle=True))

Outside oppa it is the `Trainer` itself. Samples are numbered from the start of the run, as in `oppa_client.transformers`.
"""

from oppa_client.lightning.trainer import OppaTrainer

__all__ = ["OppaTrainer"]
