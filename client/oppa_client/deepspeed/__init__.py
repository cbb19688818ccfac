"""Train with a DeepSpeed engine under oppa: batch and accumulation follow the run's plan, and everything that counts goes by samples.

    from oppa_client.deepspeed import EngineLoop

    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config="ds.json")
    loop = EngineLoop(engine, dataset, checkpoints="checkpoints", samples=16000)
    for step in loop:
        for inputs in step:               # the micro-batches of this rank
            step.backward(engine(inputs)) # a mean over the samples of the micro-batch
        step.update()
    # all samples are taken

A step of an engine with a pipeline is `step.train_batch()`. Outside oppa the loop trains with the engine's own batch.

Samples are numbered from the start of the run. Sample n is element n % size of the shuffled order of epoch n // size, whatever the batch
and the layout. A step of the engine's learning rate schedule is as many samples as the batch for which the learning rate was chosen.
"""

from oppa_client.deepspeed.loop import EngineLoop, Step

__all__ = ["EngineLoop", "Step"]
