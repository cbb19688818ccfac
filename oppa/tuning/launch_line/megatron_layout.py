"""Read the layout of pipeline stages that a launch line of Megatron-LM states: `--pipeline-model-parallel-layout 'Et*3|(tt|)*29m|L'`."""

from oppa.pipeline.stage_layout import evenly, letters, plain
from oppa.problem.configuration import Value
from oppa.problem.stage_text import expanded, stage_count
from oppa.tuning.formats.megatron import STAGES
from oppa.tuning.launch_line.options import Options, contradiction


def layout_settings(options: Options, *, layers: int, ranks: int) -> dict[str, Value] | None:
    """Return the parameters that the layout sets; None if the search space has no parameters for it.

    Stages of equal size need only their number. Others are a layout of the search space if each rank has one.

    Args:
        layers: Layers of the model, without those of multi-token prediction.
        ranks: Pipeline-parallel size.

    Raises:
        InputError: the layout cannot be parsed, or its stages are no multiple of the ranks.
    """
    if STAGES not in options:
        return {}
    text = options.value(STAGES)
    if (count := stage_count(text)) % ranks:
        message = f"`{STAGES}` ({options.origin(STAGES)}) has {count} stages, which are no multiple of pp {ranks}"
        raise contradiction(message, hint="use as many stages on each rank")
    chunks, chain = count // ranks, plain(layers)
    if layers % count == 0 and expanded(text) == letters(evenly(chain, count), chain):
        return {"model_chunks": chunks} if chunks > 1 else {}
    return {"pipeline_layout": text} if chunks == 1 else None
