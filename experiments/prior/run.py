"""Compare the prior's predictions with published measurements."""

import dataclasses
import functools
from collections.abc import Mapping

import pandas as pd
import torch

from experiments import published
from experiments.lib.prediction_error import all_reduce_section, error, skipped, task_section, task_table
from experiments.prior.first_trials import trial_errors
from experiments.prior.page_errors import page_errors, page_figures, page_section
from experiments.prior.refits import known_models, left_out
from experiments.prior.source_errors import judge
from experiments.prior.source_page import figures, left_out_section, memory_section, missed_section, speed_section
from oppa.cost.beliefs import prior_beliefs
from oppa.cost.collectives import CollectiveGroup, all_reduce_time
from oppa.cost.facts import machine_of
from oppa.cost.hardware import load_hardware
from oppa.cost.prediction import predict_rows
from oppa.report.record import Section


def prior() -> list[Section]:
    """Compare the prior with the published runs of every source, and with NCCL all-reduces.

    If their data are missing, a section lists them, and performance pages alone are compared.
    """
    if lacking := published.missing():
        return [skipped("prior", lacking), page_section(page_errors())]
    shipped, other = source_tables()
    frameworks = _with_trials(judge(_predicted()[known_models(_predicted())], "framework"), "framework")
    runs = predict_rows(published.nanotron_rows())
    return [
        speed_section(shipped, title="Step times, source by source", by="source"),
        memory_section(shipped, title="Memory, source by source", by="source"),
        missed_section(shipped),
        left_out_section(shipped, other),
        speed_section(frameworks, title="Step times, framework by framework", by="framework"),
        memory_section(frameworks, title="Memory, framework by framework", by="framework"),
        page_section(page_errors()),
        *(_tasks(runs), _fitting(runs), _recomputation(), _all_reduces()),
    ]


def prior_figures() -> Mapping[str, object]:
    """Return the sections as `prior`, and the errors of every source as numbers."""
    found: dict[str, object] = {"prior": [dataclasses.asdict(each) for each in prior()], "pages": page_figures(page_errors())}
    if published.missing():
        return found
    shipped, other = source_tables()
    return {**found, "sources": figures(shipped), "leave_one_out": figures(other)}


@functools.cache
def source_tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the errors of every source: with the medians of `priors/`, and with coefficients that are fitted to other sources."""
    return _with_trials(judge(_predicted()), "source"), judge(left_out(published.all_rows()))


def all_reduce_errors() -> pd.DataFrame:
    """Return `members`, `bytes` and `error` for NCCL all-reduces within a host of A100."""
    measured = published.all_reduces("a100")
    hardware = load_hardware("A100-80GB")
    members = torch.tensor(measured["members"].to_numpy(), dtype=torch.float64)
    payload = torch.tensor(measured["bytes"].to_numpy(), dtype=torch.float64)
    group = CollectiveGroup(members, members, torch.ones_like(members))
    predicted = all_reduce_time(group, payload, machine_of(hardware, "fp16", len(members)), prior_beliefs(hardware))
    return measured.assign(error=error(pd.Series(predicted.numpy()), measured["seconds"]))


@functools.cache
def _predicted() -> pd.DataFrame:
    return predict_rows(published.all_rows())


@functools.cache
def _trial_errors() -> pd.DataFrame:
    return trial_errors(_predicted())


def _with_trials(errors: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return the errors with the medians of `trial_errors` over tasks."""
    return errors.join(_trial_errors().groupby(by).median(numeric_only=True))


def _tasks(runs: pd.DataFrame) -> Section:
    return task_section(
        task_table(runs),
        title="Which configuration is fast: nanotron on H100",
        text=f"The {published.FILES[published.NANOTRON]}. A task is a model on a number of devices; its candidates are the runs "
        "that completed. Some runs stall by chance, mostly on 512 devices (results/calibrate). A regret over 100% means a stalled choice.",
    )


def _fitting(runs: pd.DataFrame) -> Section:
    ran = runs["status"] == published.RAN
    kinds = {"ran": ran, "failed": ~ran & runs["flag"].isna(), "failed: too few micro-batches": runs["flag"].notna()}
    fits = runs["fits"].astype("object")
    answers = {"fits": fits.eq(True), "does not fit": fits.eq(False), "cannot run": fits.isna()}
    rows = [(kind, *(int((which & answer).sum()) for answer in answers.values())) for kind, which in kinds.items()]
    kept, refused = answers["fits"][ran].mean(), (~answers["fits"])[kinds["failed"]].mean()
    return Section(
        title="Which configuration fits: nanotron on H100",
        text=f"{kept:.1%} of the completed runs are predicted to fit, and {refused:.1%} of the failed ones are predicted not to fit. "
        "`failed` includes failures other than out of memory, so the second figure cannot reach 100%.",
        columns=("run / predicted", *(f">{answer}" for answer in answers)),
        rows=rows,
    )


def _recomputation() -> Section:
    runs = predict_rows(published.recomputation_rows())
    ratios = runs["predicted_step_time_s"] / runs["step_time_s"]
    errors = (ratios - 1).abs()
    runs["ratio"] = ratios.map("{:.2f}".format)
    return Section(
        title="Large models: Megatron-LM on A100",
        text=f"The {published.FILES[published.RECOMPUTATION]}, with tensor and interleaved pipeline parallelism: "
        f"median error {errors.median():.1%}, largest {errors.max():.1%}.",
        columns=("model", ">devices", "recomputation", ">predicted / measured"),
        rows=runs[["model", "gpus", "recompute", "ratio"]].values.tolist(),
    )


def _all_reduces() -> Section:
    return all_reduce_section(
        all_reduce_errors(),
        title="All-reduces on A100",
        text="NCCL all-reduces of 1 MB to 1 GB within a host (vTrain's measurements) determine the prior latency and efficiency of links.",
    )
