"""`oppa predict`: predict a job's configurations, or the rows of a file, by the prior, without a measurement."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oppa.cli.job_options import Changes, Command, ModelWords, problem_of, settings_of
from oppa.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    import pandas as pd

    from oppa.problem.candidates import Candidates

JOB = "Job file, whose whole search space is ranked."
ROWS = "Predict the rows of this CSV file, or of stdin for `-`, instead of a job."
OUT = "Write the rows with their predictions to this file, instead of printing them; `-` prints them."


def predict(
    job: Annotated[Path | None, typer.Argument(metavar="JOB", help=JOB, show_default=False)] = None,
    command: Command = None,
    *,
    limit: Annotated[int, typer.Option(min=1, help="Number of configurations to list.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print every configuration as JSON, one a line, best first.")] = False,
    changes: Changes = None,
    model: ModelWords = None,
    rows: Annotated[Path | None, typer.Option(metavar="CSV", help=ROWS)] = None,
    out: Annotated[Path | None, typer.Option(metavar="CSV", help=OUT)] = None,
) -> None:
    """Rank configurations by the prior alone, without a trial.

    --rows has the columns layers, hidden, heads, kv_heads, ffn, vocab, seq_len,
    device, gpus, gpus_per_node, gbs, mbs, dp, tp, pp, model_chunks, zero and
    recompute. device is an id or alias in priors/hardware; zero is 0 to 3;
    recompute is none, selective or full. An empty cell of an optional column is
    the default. The optional columns are:

    framework  megatron, fsdp, deepspeed, colossalai, nanotron, torch or other
    layout     cp, cp_mode, sequence_parallel, ep, etp, dispatcher, shard,
               recompute_layers, recompute_modules, offload, overlap_tp,
               overlap_ep, overlap_p2p, overlap_zero_comm,
               overlap_zero_allgather, compiled, cuda_graphs, stage_layout,
               hpz, quantized_weights, quantized_gradients, fp8_weights
    model      gated, tied, head_dim, attention, loss, residuals, norms,
               experts, experts_per_token, expert_ffn, shared_expert_ffn,
               expert_products, dense_layers, kv_lora_rank, q_lora_rank,
               qk_rope_head_dim, v_head_dim, sliding_window,
               full_attention_layers
    training   precision, optimizer, moments, gradients, trained, weights

    The output keeps all rows, their order, and all other columns. It adds step
    time and memory with 90% intervals, tokens per second, whether the row fits,
    and the probability that it does.

    Exit codes: 0 predicted, 1 no configuration of the job fits or no framework can run any row, 2 wrong input, 3 environment lacking.
    """
    if (job or command) and not rows and not out:
        _predict_job(job, command or (), settings_of(changes, model), limit=limit, as_json=as_json)
    elif rows and not job and not command and not as_json and not changes and not model:
        _predict_rows(rows, out)
    else:
        raise InputError(
            "`oppa predict` needs either JOB (with --limit or --json) or --rows (with --out)",
            hint="use `oppa predict job.toml`, or `oppa predict --rows in.csv --out out.csv`",
        )


def _predict_job(job: Path | None, command: Sequence[str], changes: Sequence[str], *, limit: int, as_json: bool) -> None:
    from oppa import api
    from oppa.cli.views import prediction_view, style
    from oppa.cli.views.summary import show_trace, warn_of_unknown_device

    stated = problem_of(job, command, changes)
    with style.err().status("predicting"):
        found = api.predict(stated)
    problem, ranked, candidates = found.problem, found.frame, found.candidates
    show_trace(problem)
    warn_of_unknown_device(problem.cluster)
    if as_json:
        prediction_view.print_json_lines(ranked, candidates)
    else:
        prediction_view.print_ranking(ranked, candidates, problem, limit)
    if not ranked["fits"].any():
        from oppa.cost.memory_limits import memory_limits

        raise _nothing_fits(ranked, candidates, memory_limits(problem).predicted)


def _predict_rows(path: Path, out: Path | None) -> None:
    from rich.markup import escape

    from oppa.cli.views import style
    from oppa.cost.prediction import predict_rows
    from oppa.cost.rows import broken_rules, convert_rows
    from oppa.cost.rows_file import STANDARD_STREAM, read_rows, to_csv, write_rows
    from oppa.units import with_noun

    if out == STANDARD_STREAM:
        out = None

    with style.err().status(escape(f"predicting the rows of {path.name}")):
        predicted = predict_rows(read_rows(path))
        if out:
            write_rows(predicted, out)
    if out is None:
        typer.echo(to_csv(predicted), nl=False)
    if len(cannot := predicted.index[predicted["fits"].isna()]):
        rules = broken_rules(convert_rows(predicted.loc[cannot[:1]]))
        broken = "; ".join(rule for rule, breaks in rules.items() if breaks[0])
        if len(cannot) == len(predicted):
            message = f"no prediction for any of the {len(predicted)} rows of `{path}`: no framework can run them"
            raise InfeasibleError(message, hint=f"line {cannot[0] + 2} breaks: {broken}")
        style.err().print(
            f"[yellow]warning[/]: no prediction for {len(cannot)} of the {len(predicted)} rows, the first in line {cannot[0] + 2}: "
            f"no framework can run them\n\n[cyan]hint[/]: line {cannot[0] + 2} breaks: {broken}\n"
        )
    if out:
        style.err().print(f"written: {out}, {with_noun(len(predicted), 'row')}, {predicted['fits'].sum()} predicted to fit", markup=False)


def _nothing_fits(ranked: "pd.DataFrame", candidates: "Candidates", usable_bytes: int) -> InfeasibleError:
    from oppa.units import format_bytes

    least = ranked["predicted_memory_bytes"].sort_values().index[0]
    needed = ranked["predicted_memory_bytes"][least]
    return InfeasibleError(
        f"none of the {len(ranked)} valid configurations is predicted to fit: `{candidates.configuration(least).id}` needs the least, "
        f"{format_bytes(needed)}, and {format_bytes(usable_bytes)} are usable",
        hint="raise `memory_limit`, or lower `seq_len` or the batch, or use more devices",
    )
