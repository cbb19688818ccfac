"""Train under oppa's supervision: the program opens the run, takes its batch from the plan, reports each step, and leaves when asked.

Only files of the attempt's folder are exchanged (`run_files`), on local or network file systems. Nothing waits for oppa: if it is gone,
training goes on with the last plan. Rank 0 goes on if the file system refuses a file. Any other rank tries again, because a plan that it
misses would divide the ranks, and ends the attempt after `READ_S`.

All ranks change together, without a message between them. Rank 0 ends step s, and writes the first step of a new plan, at least s + 2,
before it begins step s + 1. No rank can end step s + 1 before rank 0 has begun it, because the gradients of a step need all ranks. So each
rank finds the plan in time at the end of step s + 1. This holds if each rank waits for its device once a step, as `loss.item()` does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oppa_client import early_start, run_files
from oppa_client.attempt import Leaving, Resume, attempt_of_trial
from oppa_client.plan import Plan, Terms
from oppa_client.rank_check import RankCheck
from oppa_client.run_files import ContractError, Lines, finite, optional, whole
from oppa_client.timed import timed
from oppa_client.trial import Trial, open_trial

ABILITIES = {"batch": "none", "micro_batch": False, "restart": False, "elastic": False, "early_start": False, "whole_steps": False}
"""Abilities of a program that declares none: neither its batch nor its layout changes."""
BATCH = ("both", "up", "down", "none")
PAUSE_S = 3600.0
"""Seconds that a pause may last, unless the program states another limit."""
READ_S, RETRY_S = 60.0, 0.1
"""Seconds for which a rank tries again what the file system refuses but all ranks need, and the seconds between two tries."""


class Run:
    """Connects one rank of a program to its run, or to a trial, in which the batch never changes.

    Args:
        trial: Folder, rank and number of ranks.
        attempt: Content of attempt.json, or what stands for it in a trial.
        lead: Further steps by which a plan is announced ahead, for loaders that prefetch.
        in_trial: True in a trial, which oppa ends after some steps.
        whole_steps: True if the training ends before a step that would be cut.
        read_s: Seconds for which a rank tries again to read a plan that the file system refuses.
    """

    def __init__(
        self,
        trial: Trial,
        attempt: dict[str, Any],
        *,
        lead: int = 0,
        in_trial: bool = False,
        whole_steps: bool = False,
        read_s: float = READ_S,
    ) -> None:
        self._trial, self._attempt, self._in_trial, self._read_s = trial, attempt, in_trial, read_s
        self._whole_steps, self._lead = whole_steps, lead + (trial.world > 1)
        self._check = RankCheck(trial.folder, trial.rank, lead=self._lead)
        self._terms, self._coming, self._past = Terms.of(attempt["plan"]), list[Terms](), list[Terms]()
        self._step, self._samples = int(attempt["step"]), int(attempt["samples"])
        self._lines = Lines(trial.folder / run_files.MEASUREMENTS)
        self._leaving: Leaving | None = None
        self._due: tuple[int, Leaving] | None = None
        """First step before which to leave, and why."""
        self._began_s: float | None = None
        self._paused_s, self._is_paused, self._resumed = 0.0, False, attempt["checkpoint"] is None
        self._statistics_every: int | None = attempt.get("statistics_every")  # an older oppa states none
        self.total_samples: int | None = attempt["total_samples"]
        """Samples of the whole training; None if it has no end, and in a trial."""
        self.configuration: dict[str, Any] = attempt["configuration"]
        """Layout of the ranks, and all other parameters of the job."""
        self.overhead_s, self.errors = 0.0, 0
        """Seconds inside the run's calls, without the body of a pause, and how many reads and writes the file system refused."""
        self._finish()

    @property
    @timed
    def resume(self) -> Resume | None:
        """Return the state to go on from; None at the beginning of a run, and in a trial."""
        self._resumed = True
        return Resume.of(self._attempt)

    @property
    @timed
    def plan(self) -> Plan:
        """Return the plan of the step that begins now, the same on all ranks."""
        if self._began_s is None:
            self._began_s = time.perf_counter()
        return self._terms.at(self._step, self._samples, self.total_samples, self._statistics_every)

    @timed
    def following(self, plan: Plan) -> Plan:
        """Return the plan of the step after another one, for a loader that prefetches: that step comes within `lead` steps."""
        number, progress = plan.step + 1, plan.progress + plan.global_batch
        terms = [each for each in (self._terms, *self._coming) if each.from_step <= number][-1]
        return terms.at(number, progress, self.total_samples, self._statistics_every)

    @property
    @timed
    def reference_batch(self) -> float:
        """Return the global batch for which the learning rate was chosen."""
        return self._terms.rate.reference_batch

    @property
    @timed
    def in_trial(self) -> bool:
        """Return True in a trial, in which nothing has to be saved."""
        return self._in_trial

    @property
    @timed
    def leaving(self) -> Leaving | None:
        """Return why the program has to leave before the next step, the same on all ranks; None if it goes on."""
        self._check.begun(self._step)
        return self._leaving

    @timed
    def step(
        self,
        *,
        samples: int,
        loss: float | None = None,
        tokens: int | None = None,
        skipped: bool = False,
        noise: dict[str, Any] | None = None,
        learning_rate: float | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        """End an optimizer step on every rank; rank 0 reports it. Wait only if the file system refuses what all ranks need.

        Args:
            samples: Samples that all ranks together took in this step, as the program counts them.
            loss: Mean loss of the step; None in a step that reports none.
            tokens: Tokens of the step.
            skipped: True if the weights did not change, as after an overflow; the samples are taken nevertheless.
            noise: Statistics of the step's gradients, such as `GradientStatistics.report()` of oppa returns them.
            learning_rate: Learning rate of the step.
            memory_bytes: Peak memory so far, maximum over ranks.

        Raises:
            ContractError: a number of samples, tokens or bytes is not whole, or this rank cannot follow the plans; the attempt has to end.
        """
        begin_s = time.perf_counter()
        seconds = max(1e-9, begin_s - (self._began_s or begin_s) - self._paused_s)
        known = {name: finite(value) for name, value in (noise or {}).items()} or None
        samples, tokens, memory_bytes = whole("samples", samples), optional("tokens", tokens), optional("memory_bytes", memory_bytes)
        facts = {"samples": samples, "tokens": tokens, "skipped": bool(skipped), "learning_rate": finite(learning_rate), "noise": known}
        facts |= {"plan": self._terms.number, "paused_s": self._paused_s} | ({} if loss is None else {"loss": finite(loss)})
        line = {"step": self._step, "step_time_s": seconds, "memory_bytes": memory_bytes, "resumed": self._resumed, **facts}
        planned = self._terms.at(self._step, self._samples, self.total_samples).global_batch
        self._began_s, self._paused_s = begin_s, 0.0
        self._step, self._samples = self._step + 1, self._samples + samples
        if self._in_trial:
            goes_on = self._trial.step(seconds, memory_bytes=memory_bytes, loss=None if loss is None else float(loss))
            self._leaving = None if goes_on else Leaving("trial")
            return
        self._check.ended(line["step"], samples, planned)
        try:
            self._exchange(line)
        except OSError:
            self.errors += 1
        self._take_up()

    @contextmanager
    def paused(self, label: str, *, at_most_s: float = PAUSE_S) -> Iterator[None]:
        """Evaluate or save inside the context: it counts as no step time, and oppa waits at most so long for its end.

        A pause inside another one is part of it. A run that leaves gets as much more time, but none for `saving`.
        """
        if self._is_paused or (self._leaving is not None and (self._in_trial or label == "saving")):
            yield
            return
        begin_s, in_step, self._is_paused = time.perf_counter(), self._began_s is not None, True
        self._begin_pause(label, time.time() + at_most_s)
        try:
            yield
        finally:
            self._is_paused, seconds = False, time.perf_counter() - begin_s
            self._end_pause(seconds)
            if in_step:  # before the first plan no step's clock runs
                self._paused_s += seconds

    @timed
    def _begin_pause(self, label: str, until: float) -> None:
        if self._trial.rank == 0:
            self._write(run_files.PAUSED, {"label": label, "until": until})

    @timed
    def _end_pause(self, seconds: float) -> None:
        if self._leaving is not None:
            self._leave_now(self._leaving.later(seconds))
        elif self._trial.rank == 0:
            self._write(run_files.PAUSED, None)

    @timed
    def saved(self, checkpoint: str | os.PathLike[str], *, step: int | None = None, samples: int | None = None) -> None:
        """State that a checkpoint is complete, from which another attempt can go on.

        Args:
            checkpoint: Its path, or a URL.
            step: Steps taken up to it; the present number if the program saved between two steps.
            samples: Samples taken up to it.
        """
        if self._trial.rank == 0 and not self._in_trial:
            at = self._step if step is None else step
            self._write(run_files.SAVED.format(at), self._state(checkpoint, at, self._samples if samples is None else samples))

    def leave(self, checkpoint: str | os.PathLike[str] | None = None, *, finished: bool = False) -> None:
        """Leave the run: the program then ends with exit code 0. All ranks call it, after the checkpoint is complete.

        Args:
            checkpoint: Path or URL of the checkpoint; None only in a trial.
            finished: True if the training is complete, in a run that has no number of samples.

        Raises:
            ContractError: the checkpoint is missing.
        """
        if self._in_trial:
            if self._trial.rank == 0 and self._leaving is None:
                self._trial.end("completed")
            return
        if self._trial.rank == 0:
            state = self._last_state(checkpoint, finished)
            cost = {"client_s": self.overhead_s, "errors": self.errors}
            run_files.write(self._trial.folder, run_files.LEFT, {**state, **cost})

    @timed
    def _last_state(self, checkpoint: str | os.PathLike[str] | None, finished: bool) -> dict[str, Any]:
        reason = "finished" if finished else self._leaving.reason if self._leaving else "stop"
        self._lines.flush()
        if checkpoint is None:
            raise ContractError("`run.leave` needs the checkpoint that was saved")
        return {**self._state(checkpoint, self._step, self._samples), "reason": reason}

    def _state(self, checkpoint: str | os.PathLike[str], step: int, samples: int) -> dict[str, Any]:
        place = os.fspath(checkpoint)
        if "://" not in place:
            place = str(Path(place).absolute())
            if not Path(place).exists():
                raise ContractError(f"the checkpoint `{place}` does not exist")
        # An asynchronous checkpoint is complete some steps later, maybe under another plan than its own.
        terms = next((each for each in reversed([*self._past, self._terms]) if each.from_step <= step), self._terms)
        return {"checkpoint": place, "step": step, "samples": samples, "plan": terms.to_dict()}

    def _finish(self) -> None:
        """Ask the program to leave once all samples are taken, or too few are left for a whole step."""
        if self.total_samples is None or self._in_trial or self._leaving is not None:
            return
        if self.total_samples - self._samples < (self._terms.global_batch if self._whole_steps else 1):
            self._leave_now(Leaving("finished", time.time() + float(self._attempt["leave_timeout_s"])))

    def _leave_now(self, leaving: Leaving) -> None:
        """Ask the program to leave; until it has, it reports no step."""
        self._leaving = leaving
        if self._trial.rank == 0:
            self._write(run_files.PAUSED, {"label": "leaving", "until": leaving.until})

    def _exchange(self, line: dict[str, Any]) -> None:
        """Report a step and answer oppa's requests on rank 0; read on the others what rank 0 has announced."""
        folder = self._trial.folder
        if self._trial.rank:
            self._insist(lambda: self._read(run_files.names_in(folder)))
            return
        self._lines.append(line)
        names = run_files.names_in(folder)
        self._insist(lambda: self._read(names))  # there is something only if the program has restarted itself
        self._answer(names)

    def _read(self, names: set[str]) -> None:
        """Read the plans and the request to leave that this rank does not have yet."""
        while (name := run_files.PLAN.format(self._newest.number + 1)) in names:
            self._announced(Terms.of(run_files.read(self._trial.folder, name)))
        if run_files.LEAVING in names and self._due is None:
            self._must_leave(run_files.read(self._trial.folder, run_files.LEAVING))

    def _answer(self, names: set[str]) -> None:
        """Announce the first step of what oppa has asked for; rank 0 has ended a step and begun no other."""
        asked = run_files.ASKED.format(self._newest.number + 1)
        if asked in names:
            first = max(self._step + self._lead, self._newest.from_step + 1)
            request = run_files.read(self._trial.folder, asked)
            if self._is_in_time(request, first):
                terms = self._newest.changed(request, from_step=first, seen=self._samples_before(first))
                self._announce(run_files.PLAN.format(terms.number), terms.to_dict())
                self._announced(terms)
        if run_files.LEAVE in names and self._due is None:
            request, first = run_files.read(self._trial.folder, run_files.LEAVE), self._step + self._lead
            if self._is_in_time(request, first):
                values = {"from_step": first, "reason": request["reason"], "until": time.time() + request["deadline_s"]}
                self._announce(run_files.LEAVING, values)
                self._must_leave(values)

    def _is_in_time(self, request: dict[str, Any], first: int) -> bool:
        """Return True if a request can still be followed that would take effect before step `first`."""
        before = request.get("before")  # without it, the request may always take effect
        return before is None or self._samples_before(first) < before

    def _announce(self, name: str, values: dict[str, Any]) -> None:
        """Write a file that all ranks follow; raise OSError only while no rank can have seen it."""
        run_files.draft(self._trial.folder, name, values)
        # A refused rename may have happened nevertheless, as on a network file system.
        self._insist(lambda: run_files.write(self._trial.folder, name, values))

    def _insist(self, exchange: Callable[[], None]) -> None:
        """Try an exchange that all ranks need until the file system accepts it; raise ContractError after `read_s`."""
        until = time.monotonic() + self._read_s
        while True:
            try:
                exchange()
                return
            except OSError as error:
                self.errors += 1
                if time.monotonic() >= until:
                    cause = f"the file system has refused a file of the run for {self._read_s:g} s ({error})"
                    raise ContractError(f"{cause}: rank {self._trial.rank} has no plan for step {self._step}") from error
            time.sleep(RETRY_S)

    def _samples_before(self, step: int) -> int:
        """Return the samples that will be taken before a coming step, under the plans that are known."""
        plans = [self._terms, *self._coming]  # by their first step
        in_force = ([plan for plan in plans if plan.from_step <= number][-1] for number in range(self._step, step))
        return self._samples + sum(plan.global_batch for plan in in_force)

    @property
    def _newest(self) -> Terms:
        return self._coming[-1] if self._coming else self._terms

    def _announced(self, terms: Terms) -> None:
        if terms.from_step < self._step:
            raise ContractError(_late(f"plan {terms.number}", terms.from_step, self._step))
        self._coming.append(terms)

    def _must_leave(self, values: dict[str, Any]) -> None:
        if values["from_step"] < self._step:
            raise ContractError(_late("the request to leave", values["from_step"], self._step))
        self._due = values["from_step"], Leaving(values["reason"], values["until"])

    def _take_up(self) -> None:
        """Bring the plan into force that begins with the next step, and a request to leave before that step."""
        while self._coming and self._coming[0].from_step <= self._step:
            self._past.append(self._terms)
            self._terms = self._coming.pop(0)
        self._finish()
        if self._leaving is None and self._due is not None and self._step >= self._due[0]:
            self._leave_now(self._due[1])

    def _write(self, name: str, values: dict[str, Any] | None) -> None:
        """Write a file, or remove it; count a refusal."""
        try:
            (self._trial.folder / name).unlink(missing_ok=True) if values is None else run_files.write(self._trial.folder, name, values)
        except OSError:
            self.errors += 1


def open_run(abilities: dict[str, Any] | None = None, *, lead: int = 0) -> Run | None:
    """Return the run, or the trial, that this process is a rank of; None outside oppa. Later, uncaught errors are reported to oppa.

    With the ability `early_start`, oppa starts the ranks of another layout while those of the layout before still train. This call then
    returns once they have left. Until then the devices are theirs.

    Args:
        abilities: What the program can do. `batch`: the batch may change between two steps, `both`, `up`, `down` or `none`.
            `micro_batch`: the micro-batch may. `restart`: the program can resume a checkpoint in another layout. `elastic`: also with
            another number of ranks. `early_start`: the program uses no device and joins no process group before this call.
            `whole_steps`: no step is cut, so that fewer samples than a batch are left at the end.
        lead: Further steps by which a plan is announced ahead, for loaders that prefetch.

    Raises:
        ContractError: oppa and this package speak no common version, an ability is unknown, or the program has left the run before.
    """
    from oppa_client import __version__

    able = {**ABILITIES, **(abilities or {})}
    able["early_start"] = able["early_start"] or early_start.is_declared()
    if able.keys() != ABILITIES.keys() or able["batch"] not in BATCH:
        known = f"the abilities are {', '.join(ABILITIES)}, and `batch` is one of {', '.join(BATCH)}"
        raise ContractError(f"`abilities = {abilities}`: {known}")
    if (trial := open_trial()) is None:
        return None
    names = run_files.names_in(trial.folder)
    if not {run_files.ATTEMPT, run_files.HOLD} & names:
        return Run(trial, attempt_of_trial(trial.spec["configuration"]), in_trial=True)
    run_files.require_present(names)
    spoken = {"protocol": run_files.PROTOCOL, "oldest": run_files.OLDEST, "client": __version__, "abilities": able}
    early_start.state_waiting(trial.folder, trial.rank, trial.world)
    if trial.rank == 0:
        run_files.write(trial.folder, run_files.ABILITIES, spoken)
    early_start.wait_for_terms(trial.folder)
    attempt = run_files.read(trial.folder, run_files.ATTEMPT)
    run_files.require_version(attempt, __version__)
    return Run(trial, attempt, lead=lead, whole_steps=bool(able["whole_steps"]))


def _late(what: str, from_step: int, step: int) -> str:
    causes = "the ranks train apart, one runs ahead (open the run with a larger `lead`), or the file system shows files late"
    return f"{what} began with step {from_step}, but this rank is at step {step}: {causes}"
