"""Connect a training program to oppa, which tunes distributed training; the package needs Python's standard library alone.

    import oppa_client

    trial = oppa_client.open_trial()         # None outside a trial
    ...
    if trial and not trial.step(step_time_s, memory_bytes=peak, loss=loss):    # every rank, after each optimizer step
        break                                # the trial is over: `step` returns False on all ranks after the same step

oppa puts the folder of this package, which contains nothing else to import, on the PYTHONPATH of each trial. A program that also imports it
outside a trial installs it: `pip install oppa-client`.
"""

from oppa_client.failures import ran_out_of_memory
from oppa_client.trial import Trial, open_trial

__version__ = "0.1.0"
__all__ = ["Trial", "__version__", "open_trial", "ran_out_of_memory"]
