"""Connect a training program to oppa, which tunes distributed training; the package needs Python's standard library alone.

    import oppa_client

    trial = oppa_client.open_trial()         # None outside a trial
    ...
    if trial and not trial.step(step_time_s, memory_bytes=peak, loss=loss):    # every rank, after each optimizer step
        break                                # the trial is over: `step` returns False on all ranks after the same step

A program that `oppa train` supervises opens its run instead, and takes its batch from the plan of each step:

    run = oppa_client.open_run(abilities={"batch": "both", "micro_batch": True, "restart": True})
    state = run.resume                       # None at the beginning
    while not run.leaving:
        plan = run.plan                      # global_batch, micro_batch, learning_rate_factor, progress in samples
        ...
        run.step(samples=taken, loss=loss)   # every rank, after each optimizer step
    if run.leaving.save:
        save(checkpoint)
    run.leave(checkpoint)

The same program then also runs as a trial. oppa puts the folder of this package, which contains nothing else to import, on the PYTHONPATH
of each trial and run. A program that also imports it outside of them installs it: `pip install oppa-client`.
"""

from oppa_client.attempt import Leaving, Resume
from oppa_client.early_start import wait_for_devices
from oppa_client.failures import ran_out_of_memory
from oppa_client.plan import Plan
from oppa_client.run import Run, open_run
from oppa_client.run_files import ContractError
from oppa_client.trial import Trial, open_trial

__version__ = "0.1.0"
__all__ = [
    "ContractError",
    "Leaving",
    "Plan",
    "Resume",
    "Run",
    "Trial",
    "__version__",
    "open_run",
    "open_trial",
    "ran_out_of_memory",
    "wait_for_devices",
]
