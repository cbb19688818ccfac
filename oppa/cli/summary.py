"""What a study is about, and what came out of it, for people."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from oppa.cli import style
from oppa.errors import InfeasibleError, OppaError
from oppa.units import format_bytes, format_count

if TYPE_CHECKING:
    from oppa.problem.candidates import Candidates
    from oppa.problem.problem import Problem
    from oppa.study import Study, Trial
    from oppa.tuning.result import Finding
    from oppa.tuning.verification import Interval


def print_problem(problem: "Problem", candidates: "Candidates", folder: Path) -> None:
    """The job in two lines, to stderr."""
    model, cluster = problem.model, problem.cluster
    hosts = f"{cluster.hosts} hosts x " if cluster.hosts > 1 else ""
    style.err().print(
        f"[bold]job[/]    {problem.name}: {model.name}, {format_count(model.parameter_count)} parameters, "
        f"batch {problem.global_batch} x {model.seq_len} tokens, {hosts}{cluster.devices_per_host} x {cluster.device}, "
        f"{format_bytes(cluster.memory_limit_bytes)} each\n"
        f"[bold]space[/]  {len(candidates)} valid configurations\n"
        f"[bold]study[/]  {folder}\n"
    )


def print_finding(study: "Study", finding: "Finding", script: Path | None = None) -> None:
    """The winner, the default, the gain and the command that runs the winner, to stderr."""
    best, default, gain = finding.best, finding.default, finding.gain
    repeats = sum(t.purpose == "verification" and t.configuration == best.configuration for t in study.trials())
    lines = ["", _line("winner", best, gain.winner if gain else None), _line("default", default, gain.default if gain else None)]
    if gain:
        verdict = "[yellow]tied[/]: the 95% intervals overlap" if gain.tied else "the 95% intervals do not overlap"
        ratio = f"[green]{gain.ratio.value:.2f}x[/] [{gain.ratio.low:.2f} - {gain.ratio.high:.2f}]"
        lines += [f"[bold]gain[/]     {ratio}, {repeats} interleaved repeats; {verdict}"]
    elif best.id == default.id:
        lines += ["[bold]gain[/]     none: nothing that was tried is faster than the default configuration"]
    else:
        lines += ["[bold]gain[/]     not verified: `oppa tune` with this study runs the repeats"]
    if script:
        lines += [f"[bold]run it[/]   {script}"]
    style.err().print("\n".join(lines))


def nothing_feasible(study: "Study", problem: "Problem") -> OppaError:
    """Why no trial could run: which constraint binds."""
    trials = [trial for trial in study.trials() if trial.outcome != "interrupted"]
    counts = Counter(trial.outcome for trial in trials)
    if not trials:
        return InfeasibleError("no trial was run: the budget is spent", hint="raise `trials` or `wall_time` under [limits]")
    said = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.most_common())
    message = f"none of the {len(trials)} trials could run: {said}"
    if counts.most_common(1)[0][0] == "out_of_memory":
        limit = format_bytes(problem.cluster.memory_limit_bytes)
        return InfeasibleError(
            message, hint=f"the memory limit of {limit} binds: raise it, or lower `seq_len` or the batch, or use more devices"
        )
    cause = next(trial.cause for trial in reversed(trials) if trial.outcome not in ("out_of_memory", "completed"))
    return InfeasibleError(f"{message}\n\nthe last cause: {cause}", hint=f"look at the logs in `{study.folder / 'trials'}`")


def new_folder(name: str) -> Path:
    """The first free `studies/<name>-NNN`."""
    taken = {path.name for path in Path("studies").glob(f"{name}-*")}
    return next(Path("studies") / candidate for n in range(1, 10**6) if (candidate := f"{name}-{n:03d}") not in taken)


def _line(name: str, trial: "Trial", interval: "Interval | None") -> str:
    speed = f"{style.rate(trial.steps_per_s)} steps/s"
    if interval:
        speed = f"{interval.value:.3g} steps/s [{interval.low:.3g} - {interval.high:.3g}]"
    return f"[bold]{name:<7}[/]  [cyan]{trial.configuration.id}[/]   {speed}   peak {style.memory(trial.memory_bytes)}"
