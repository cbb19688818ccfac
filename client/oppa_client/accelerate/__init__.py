"""Train with a loop of one's own around HF Accelerate under oppa: the batch follows the run's plan.

    from oppa_client.accelerate import OppaTraining

    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    training = OppaTraining(accelerator, model, optimizer, loader, scheduler=scheduler, epochs=3)
    for inputs in training:                              # in place of the prepared DataLoader
        with accelerator.accumulate(model):
            training.backward(model(**inputs).loss)      # in place of `accelerator.backward`
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

Outside oppa the same loop trains with the batch of its loader. Samples are numbered from the start of the run, as in
`oppa_client.transformers`.
"""

from oppa_client.accelerate.training import OppaTraining

__all__ = ["OppaTraining"]
