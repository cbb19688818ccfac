"""The user's own launch line as a trial: fills it in, rewrites configuration files, starts it, and reads its steps where it must.

A program that reports its steps itself (report.py) takes this process's place. Of another one, each line of output is held against the
declared pattern; it is ended once it has taken the steps of the trial, or oppa has seen enough. On several hosts each has one of these; the
first that reads of a step is the one that reports.
"""

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

import report
from command.rewriting import rewrite

from oppa.problem.command import UNITS, values_of
from oppa.trials.wire import REPORT, REPORTER, TrialSpec

ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # colours and cursor movements
GIB = 1 << 30
LOOK_S = 0.5


def main(folder):
    """Run the trial in `folder`; the program's exit code."""
    spec = TrialSpec.read(folder)
    values = values_of(spec.configuration, spec.model, spec.cluster, spec.training, steps=spec.steps, folder=folder)
    host = int(os.environ.get("PET_NODE_RANK", "0"))
    own = folder / f"host{host}" if host else folder  # as oppa.trials.logs has it
    copies = {}
    for file in spec.command.files:
        copies[file.name] = own / Path(file.path).name
        rewrite(Path(file.path), copies[file.name], file.rewritten(values))
    argv = spec.command.words(values, copies)
    sys.stdout.write(f"$ {' '.join(argv)}\n")
    sys.stdout.flush()
    if spec.command.steps is None:
        os.execvp(argv[0], argv)
    return Follower(report.Trial(folder), spec).run(argv)


class Follower:
    """Starts a program and reads its steps from what it prints."""

    def __init__(self, trial, spec):
        self.trial, self.wanted = trial, spec.steps
        self.reporting = None
        self.pattern = re.compile(spec.command.steps.pattern)
        self.out_of_memory = re.compile(spec.command.steps.out_of_memory)
        self.last_s, self.last_step = time.monotonic(), 0
        self.enough, self.lacking = False, ""

    def run(self, argv):
        """Start it, follow it to its end, and say how it ended; its exit code, 0 where it was we who ended it."""
        program = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for line in lines_of(program):
            self.read(line)
            if self.enough or self.is_over_elsewhere():
                program.terminate()  # what it leaves behind is ended by oppa, as after any trial
                return 0
        code = program.wait()
        if code and self.lacking:
            self.trial.end("out_of_memory", cause=self.lacking)
        if code < 0:
            die_of(-code)
        return code

    def read(self, line):
        """Take in one line of output."""
        text = ESCAPES.sub("", line)
        if found := self.pattern.search(text):
            self.step(found.groupdict())
        elif not self.lacking and self.out_of_memory.search(text):
            self.lacking = text.strip()

    def step(self, facts):
        """Report the steps that a line tells of."""
        now_s = time.monotonic()
        step = int(facts["step"]) if facts.get("step") else self.last_step + 1
        if (count := step - self.last_step) < 1:
            return  # the same step again, as progress bars do
        told_s = next((float(facts[unit]) * scale for unit, scale in UNITS.items() if facts.get(unit)), (now_s - self.last_s) / count)
        memory = int(float(facts["memory_gib"]) * GIB) if facts.get("memory_gib") else None
        loss = float(facts["loss"]) if facts.get("loss") else None
        self.last_s, self.last_step = now_s, step
        if not self.reports():
            return
        for _ in range(count):
            stop = not self.trial.step(told_s, memory_bytes=memory, loss=loss)
            self.enough = self.enough or stop or self.trial.next_step >= self.wanted

    def is_over_elsewhere(self):
        """Whether another host, which reports, has seen the last step."""
        return not self.reporting and (self.trial.folder / REPORT).exists()

    def reports(self):
        """Whether this host is the one that reports; the first to ask is."""
        if self.reporting is None:
            try:
                (self.trial.folder / REPORTER).open("x").close()
                self.reporting = True
            except FileExistsError:
                self.reporting = False
        return self.reporting


def die_of(number):
    """End by the signal that ended the program, so that oppa sees it."""
    with contextlib.suppress(OSError):  # of SIGKILL nobody needs the default action
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def lines_of(program):
    """What a program prints on either stream, line by line as it comes (`\\r` ends one, too) and passed on; at times an empty one."""
    with selectors.DefaultSelector() as selector:
        rests = {program.stdout: b"", program.stderr: b""}
        passed_on = {program.stdout: sys.stdout.buffer, program.stderr: sys.stderr.buffer}
        for stream in rests:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(LOOK_S)
            yield from [] if ready else [""]
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                passed_on[key.fileobj].write(data)
                passed_on[key.fileobj].flush()
                *lines, rests[key.fileobj] = re.split(rb"[\r\n]", rests[key.fileobj] + data)
                lines += [] if data else [rests[key.fileobj]]
                yield from (line.decode(errors="replace") for line in lines)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
