"""Open the run of a folder, new or continued, in a configuration that can be trained."""

import dataclasses
import logging
import uuid
from pathlib import Path

from oppa.control.own_trainer.advice import is_first_run
from oppa.control.training_session.options import TrainOptions
from oppa.errors import InputError, RunError
from oppa.problem.configuration import Configuration
from oppa.problem.problem import Problem
from oppa.study.database import FILE
from oppa.table.table import Table
from oppa.training.parallel.supported_layouts import require_buildable, require_measurable, require_shareable
from oppa.training.run.run_folder import SPEC, RunSpec

_log = logging.getLogger(__name__)


def opened_run(folder: Path, problem: Problem, options: TrainOptions) -> RunSpec:
    """Return the run in a folder, new or continued.

    Run options, limits and cluster may change between attempts; model and data may not.

    Raises:
        InputError: the training core cannot build the configuration, or cannot measure what the run is to measure; or the policy gives
            workers batches of their own, which the configuration does not allow.
        RunError: the folder holds a run of another model or other data, or a study.
    """
    advise, reference = problem.run_options.advise, problem.run_options.reference_batch
    if not (folder / SPEC).exists():
        if (folder / FILE).exists():
            raise RunError(f"`{folder}` is a study or a table, and no run", hint="name another folder with --run")
        run = RunSpec(uuid=str(uuid.uuid4()), problem=problem, configuration=first_configuration(problem, options))
        _warn_of_table(problem, options)
    else:
        run = RunSpec.read(folder)
        run.require_continued_by(problem, folder)
        advise = run.problem.run_options.advise if advise is None else advise
        reference = reference or run.problem.run_options.reference_batch
        if problem.run_options.usual_scaling:  # the learning rate of a run does not jump between two attempts
            scaling = run.problem.run_options.scaling
            problem = dataclasses.replace(problem, run_options=dataclasses.replace(problem.run_options, scaling=scaling))
        same_size = run.configuration.devices == problem.cluster.devices
        present = run.configuration if same_size else _default(problem)
        run = dataclasses.replace(run, problem=problem, configuration=options.asked or present)
        _require_trainable(problem, run.configuration)
    if options.splits:
        _require_split(problem, run.configuration, options.policy)
    if problem.command is not None and (options.make or options.control) and advise is None:
        advise = is_first_run(folder, problem)
    run_options = dataclasses.replace(problem.run_options, reference_batch=reference or problem.global_batch, advise=advise)
    run = dataclasses.replace(run, problem=dataclasses.replace(problem, run_options=run_options), policy=options.policy)
    run.write(folder)
    return run


def first_configuration(problem: Problem, options: TrainOptions) -> Configuration:
    """Return the configuration in which a new run begins; raises InputError if it cannot be trained."""
    begin = options.asked or options.usual or _fastest(problem, options.table) or _default(problem)
    _require_trainable(problem, begin)
    return begin


def _warn_of_table(problem: Problem, options: TrainOptions) -> None:
    """Warn that a new run begins with the default, because its table measured nothing at the job's batch."""
    if options.table and not (options.asked or options.usual or _fastest(problem, options.table)):
        _log.warning(
            "the table has no measured row of the global batch %d, so the run begins with the default configuration", problem.global_batch
        )


def _require_trainable(problem: Problem, configuration: Configuration) -> None:
    """Raise InputError if the core cannot build a configuration, or cannot measure what the run is to measure."""
    if problem.command is not None:  # the user's own trainer
        return
    require_buildable(problem.model, configuration)
    require_measurable(configuration, problem.run_options.statistics_every)
    _require_files(problem)


def _require_split(problem: Problem, configuration: Configuration, policy: str) -> None:
    """Raise InputError if the workers of a configuration cannot have batches of their own, so that a policy could decide nothing."""
    each = configuration.global_batch // configuration.dp
    shares = [configuration.global_batch - each * (configuration.dp - 1), *[each] * (configuration.dp - 1)]
    try:
        require_shareable(problem.model, configuration, shares)
        is_possible = configuration.dp > 1
    except InputError:
        is_possible = False
    if not is_possible:
        layout = f"`dp={max(2, problem.cluster.devices)}`, where each rank holds all layers of a dense model, with ZeRO 0 or 1"
        message = f"`--policy {policy}` gives each worker a batch of its own, which `{configuration.id}` does not allow"
        raise InputError(message, hint=f"name a configuration such as {layout}")


def _require_files(problem: Problem) -> None:
    """Raise InputError if the job's token files or the weights that it starts from are wrong."""
    if problem.training.tokens:
        from oppa.training.data.batches import Corpus

        Corpus.of_tokens(problem.training, problem.model, held_out=problem.run_options.validation)
    if problem.training.init_from:
        from oppa.training.model.huggingface import pretrained_of

        pretrained_of(problem.training, problem.model)


def _fastest(problem: Problem, table: Table | None) -> Configuration | None:
    """Return the configuration that the table measured as the fastest at the job's global batch; None if it measured none."""
    rows = [row for row in table.rows if row.source == "measured"] if table else []
    rows = [row for row in rows if row.configuration.global_batch == problem.global_batch]
    return max(rows, key=lambda row: row.steps_per_s).configuration if rows else None


def _default(problem: Problem) -> Configuration:
    """Return the space's default configuration."""
    candidates = problem.candidates()
    return candidates.configuration(int(candidates.default_order()[0]))
