"""Run the user's own launch line as a trial: fill it in, rewrite configuration files, start it, and read its steps if it reports none.

Each line of output is matched against the declared pattern, or against those of known formats. The program is ended once it has taken the
steps of the trial, or oppa has seen enough. A harmless trial also ends with the program's own last step, before the program evaluates or
saves. A program that reports its steps itself (oppa_client) is only watched to its end. If there are several hosts, each runs one such
process; the first that reads a step is the one that reports.
"""

import contextlib
import functools
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for the modules in this folder

import oppa_client
from oppa_client import run_files
from recognition import Recognition, counts_batches, end_of
from rewriting import rewrite
from steps import StepCounter, facts_of

from oppa import catalog
from oppa.problem.containers import with_mounts
from oppa.problem.file_copies import copies_of
from oppa.problem.memory_lines import reports_failure, reports_lack_of_memory
from oppa.problem.trial_values import WRITES, values_of
from oppa.trials import logs
from oppa.trials.root_cause import ESCAPES, PREFIX, root_cause
from oppa.trials.trial_folder import ATTEMPT, MEASUREMENTS, OPENED, RECOGNISED, REPORT, REPORTER, TrialSpec

LOOK_S, DRAIN_S = 0.5, 5.0
"""Seconds between two checks of the program, and most seconds of output that others print after its end."""
BAR_END = re.compile(rb"\[[0-9:]+[<,][^\]]*(?:it/s|s/it)[^\]]*\](?:\s|\x1b\[[0-9;]*[A-Za-z])*$")
"""End of a bar of tqdm, with the spaces and the movements of the cursor that follow it."""
LONGEST_BAR = 512
"""Most bytes of the end of a bar."""
LONGEST_LINE = 1 << 12
"""Most bytes of a line that are read; a program may print its data, or no end of a line."""


def main(folder):
    """Run the trial in `folder`, and return the program's exit code."""
    spec = TrialSpec.read(folder)
    values = values_of(spec.configuration, spec.stated_model, spec.cluster, spec.training, steps=spec.steps, folder=folder)
    host = int(os.environ.get("PET_NODE_RANK", "0"))
    own = folder / f"host{host}" if host else folder  # the folder that oppa.trials.logs returns
    copies = copies_of({file.name: Path(file.path) for file in spec.command.files}, own)
    for file in spec.command.files:
        copies[file.name].parent.mkdir(exist_ok=True)
        rewrite(Path(file.path), copies[file.name], file.rewritten(values, copies))
    # A container lacks the folders that only trials have, and the user's own mounts need not cover them.
    argv = with_mounts(spec.command.words(values, copies), client=catalog.client(), study=folder.parent.parent)
    if spec.command.originals:
        (folder / WRITES).mkdir(exist_ok=True)
    if "cache_folder" in spec.command.placeholders:
        Path(values["cache_folder"]).mkdir(exist_ok=True)
    sys.stdout.write(f"$ {' '.join(argv)}\n")
    sys.stdout.flush()
    steps = spec.command.steps
    counter = functools.partial(
        StepCounter,
        ranks=spec.cluster.devices_per_host,
        now_s=time.monotonic(),
        tokens=values.get("tokens_per_step", 1),
        better=steps.better if steps else "",
    )
    accumulation = values["num_microbatches"] if "num_microbatches" in spec.command.placeholders else 1
    follower = Follower(
        oppa_client.Trial(folder),
        steps,
        wanted=spec.steps,
        counter=functools.partial(counter, per_step=steps.batches(values)) if steps else counter,
        accumulation=accumulation,
        to_end=spec.command.originals is None,
        errors=own / logs.STDERR,
    )
    return follower.run(argv, spec.command.variables(values))


class Follower:
    """Starts a program, and reads its steps from its output."""

    def __init__(self, trial, steps, *, wanted, counter, accumulation, to_end, errors):
        """Follow a program.

        Args:
            trial: Takes the steps.
            steps: Declares how lines report steps; None: the format is recognised.
            wanted: Number of steps after which the program is ended.
            counter: Makes a counter of steps, for lines that count steps, or `per_step` batches of each.
            accumulation: Batches of a step, which the program gets as an argument.
            to_end: The program goes on after its own last step.
            errors: File of its stderr.
        """
        self.trial, self.wanted, self.to_end, self.errors = trial, wanted, to_end, errors
        self.counter, self.counter_of, self.accumulation = counter(), counter, accumulation
        self.reporting = None
        self.pattern = re.compile(steps.pattern) if steps else None
        self.recognition = Recognition()
        self.end = end_of(steps.format if steps else "")
        self.steps = steps
        self.enough, self.lacking = False, ""

    def run(self, argv, variables):
        """Start the program, follow it to its end, and report a lack of memory; return its exit code, or 0 if this ended it.

        `variables` are added to the program's environment.
        If a signal ended the program, the same signal ends this process.
        """
        environment = {**os.environ, **variables}
        program = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        for lines in lines_of(program):
            try:
                self.read([ESCAPES.sub("", line) for line in lines], time.monotonic())
            except ValueError as error:
                self.trial.end("failed", cause=str(error))
                self.enough = True
            if self.enough or self.is_over_elsewhere():
                program.terminate()  # oppa ends the processes that it leaves, as after any trial
                return 0
        code = program.wait()
        if code and self.lacking and (reports_failure(self.lacking, self.steps) or not self.raised_another()):
            self.trial.end("out_of_memory", cause=self.lacking)
        if code < 0:
            die_of(-code)
        return code

    def read(self, texts, now_s):
        """Read lines of output that came at once, and report the steps that they complete."""
        if (self.trial.folder / ATTEMPT).exists():  # a run: the program reports, and ends by itself
            return
        found = [self.pattern.search(text) if self.pattern else None for text in texts]
        others = [PREFIX.sub("", text, count=1).rstrip() for text, match in zip(texts, found, strict=True) if not match]
        # The lines of source in a traceback are indented.
        lacking = [text for text in others if not text.startswith(" ") and reports_lack_of_memory(text, self.steps)]
        self.lacking = max([self.lacking, *lacking], key=lambda text: bool(text) + reports_failure(text, self.steps))
        if self.pattern is None:
            self.recognise(texts, now_s)
            return
        steps = self.counter.read([facts_of(text, match) for text, match in zip(texts, found, strict=True) if match], now_s)
        for step in steps if steps and self.reports() else []:
            if not self.enough:
                facts = {"loss": step.loss} | ({"averaged": True} if step.averaged else {})
                stop = not self.trial.step(step.seconds, memory_bytes=step.memory_bytes, **facts)
                self.enough = stop or self.trial.next_step >= self.wanted
        is_over = not self.to_end and self.end is not None and any(map(self.end.search, texts))
        if is_over and self.trial.next_step and not self.enough:
            self.trial.end("completed")
            self.enough = True

    def raised_another(self):
        """Return True if the program ended by an exception that does not state a lack of memory."""
        root = root_cause(logs.last_words(self.errors, logs.READ_BYTES))
        return root is not None and root.raised and root.signal is None and not reports_lack_of_memory(root.line, self.steps)

    def recognise(self, texts, now_s):
        """Read lines by the format of which they are, once there are enough of them and if the program does not report by itself."""
        lines = self.recognition.read(texts, now_s)
        if not lines or self.reports_by_itself():
            return
        name = self.recognition.name
        self.pattern, self.end = self.recognition.patterns[name], end_of(name)
        if counts_batches(name):
            self.counter = self.counter_of(per_step=self.accumulation)
        shown = (self.pattern.search(text) for earlier, _ in lines for text in earlier)
        total = next((match["total"] for match in shown if match and "total" in match.groupdict()), None)
        (self.trial.folder / RECOGNISED).write_text(f"{name} {total}" if total else name)
        for earlier, then_s in lines:
            self.read(earlier, then_s)

    def reports_by_itself(self):
        """Return True if the program has opened its trial, or has reported a step, which this process has not."""
        if OPENED in self.files():
            return True
        steps = self.trial.folder / MEASUREMENTS  # which oppa makes, unlike the script that starts the winner
        return not self.trial.next_step and steps.exists() and steps.stat().st_size > 0

    def is_over_elsewhere(self):
        """Return True if another host reports, and has reported the end of the trial."""
        if self.reporting:
            return False
        files = self.files()
        return REPORT in files and (self.pattern is not None or REPORTER in files)  # a host that prints nothing recognises no format

    def files(self):
        """Return the names in the trial's folder; a network file system caches that a single file is missing."""
        with contextlib.suppress(OSError):  # the program may have removed the folder
            return run_files.names_in(self.trial.folder)
        return set()

    def reports(self):
        """Return True if this host is the one that reports: the first that calls this."""
        if self.reporting is None:
            try:
                (self.trial.folder / REPORTER).open("x").close()
                self.reporting = True
            except FileExistsError:
                self.reporting = False
        return self.reporting


def die_of(number):
    """End by the signal that ended the program, so that oppa detects it."""
    with contextlib.suppress(OSError):  # SIGKILL always has its default action
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def lines_of(program):
    """Yield what a program prints on both streams, in lists of lines that come at once.

    A list is empty if nothing came for LOOK_S seconds. `\\r` ends a line, too. Processes that the program leaves may keep its streams open,
    so its own end counts.
    """
    ended_s = None
    with selectors.DefaultSelector() as selector:
        lines = {program.stdout: OutputLines(), program.stderr: OutputLines()}
        passed_on = {program.stdout: sys.stdout.buffer, program.stderr: sys.stderr.buffer}
        for stream in lines:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(LOOK_S)
            if not ready:
                yield []
            if program.poll() is not None:
                ended_s = ended_s or time.monotonic()
                if not ready or time.monotonic() - ended_s > DRAIN_S:
                    break
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                passed_on[key.fileobj].write(data)
                passed_on[key.fileobj].flush()
                yield lines[key.fileobj].complete(data)
        for stream in selector.get_map().values():
            yield lines[stream.fileobj].complete(b"")


class OutputLines:
    """Cuts a stream into lines, and keeps the beginning of the line that has no end yet.

    A bar is whole when it is printed. Its `\\r` comes in front, so the end of its line comes only with the next one.
    """

    def __init__(self):
        self.rest = b""

    def complete(self, data):
        """Return the lines that end in the data; no data ends the last line."""
        *lines, self.rest = re.split(rb"[\r\n]", self.rest + data)
        if not data or BAR_END.search(self.rest[-LONGEST_BAR:]):
            lines, self.rest = [*lines, self.rest], b""
        self.rest = self.rest[:LONGEST_LINE]
        return [line[:LONGEST_LINE].decode(errors="replace") for line in lines]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
