"""Read batches of torchtitan that are counted in tokens, as commits after release 0.3 count them, and write those of trials.

Source: torchtitan/config/configs.py and trainer.py at commit b5bcd76.
"""

from collections.abc import Mapping

from oppa.errors import InputError
from oppa.problem.bounded_text import read_text
from oppa.problem.space_file import divisors
from oppa.tuning.launch_line.meaning import ArgumentWords
from oppa.tuning.launch_line.options import Options
from oppa.tuning.launch_line.sources import LineSources

TOKENS: Mapping[str, str] = {
    "training.local_batch_size": "training.num_tokens_per_microbatch_per_dp_rank",
    "training.global_batch_size": "training.num_tokens_per_train_step",
    "training.seq_len": "training.max_context_length",
}
"""Keys of commits that count tokens, by the keys of release 0.3 that count sequences."""
PASSES = "parallelism.num_pp_microbatches"
"""Micro-batches that pass through a pipeline in one accumulation."""
_CHECKOUT = "torchtitan/config/configs.py"


def counts_tokens(options: Options, sources: LineSources) -> bool:
    """Return whether the release counts tokens, as options of the line show, or the checkout in which the program starts."""
    if any(name in options for name in (*TOKENS.values(), PASSES)):
        return True
    path = sources.local_file(_CHECKOUT)
    try:
        return path is not None and next(iter(TOKENS.values())).rpartition(".")[2] in read_text(path)
    except InputError:
        return False


def batch_words(total: int, length: int) -> dict[str, ArgumentWords]:
    """Return the words of the global batch and of each micro-batch, in tokens.

    Args:
        total: Sequences of a step.
        length: Tokens of a sequence.
    """
    local, step, _ = TOKENS.values()
    return {
        "dp": [f"--{step}", str(total * length)],
        "micro_batch": {str(micro): [f"--{local}", str(micro * length)] for micro in divisors(total)},
    }
