"""Train with Transformers' `Trainer` under oppa: the batch follows the run's plan, and everything that counts goes by samples.

    from oppa_client.transformers import OppaTrainer

    trainer = OppaTrainer(model=model, args=args, train_dataset=dataset)   # the arguments of `Trainer`
    trainer.train()

Outside oppa it is the `Trainer` itself. A `Trainer` class of one's own follows the plan as `class Mine(OppaTrainer, MyTrainer)`.

Samples are numbered from the start of the run. Sample n is element n % size of the shuffled order of epoch n // size, whatever the batch
and the number of ranks. `TrainingArguments` count steps in warm-up and decay, and between logs, evaluations and checkpoints. Such a step is
as many samples as the batch has for which the job's learning rate was chosen.
"""

from oppa_client.transformers.trainer import OppaTrainer

__all__ = ["OppaTrainer"]
