"""Act out a script: real processes that run, fail, hang and are killed as it says.

The script is the trial's `training.corpus`, one instruction per line. An instruction that ends in `@ r` is for rank r alone.

    steps N S       N optimizer steps of S seconds each, reported by rank 0 (a stop is heard between them)
    raise WORDS     an exception
    memory          a MemoryError
    limit MIB       limits its own memory
    allocate MIB    uses memory
    groups          prints its control groups
    exit CODE       ends at once, with no word
    signal NAME     sends itself a signal: SIGKILL, SIGSEGV, SIGSTOP, ...
    ignore NAME     does not listen to a signal
    mourn NAME      an exception when the signal comes, as when a peer is lost
    daemon          starts a grandchild in a session of its own that ignores SIGTERM
    forget          starts a grandchild in a session of its own with an empty environment
    print BYTES     fills stdout
    line TEXT       appends TEXT to the measurements, where `\\n` is a newline
    variable NAME   prints its rank and a variable of its environment
    sleep S         does nothing
    shell WORDS     runs a line of the shell
"""

import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import oppa_client


class Script:
    """Holds one rank's run through the script."""

    def __init__(self, folder, rank):
        self.trial = oppa_client.Trial(folder)
        self.rank = rank

    def run(self):
        """Do every line that is for this rank."""
        for line in self.trial.spec["training"]["corpus"].splitlines():
            words, _, rank = line.partition("@")
            verb, *arguments = shlex.split(words)
            if not rank or int(rank) == self.rank:
                getattr(self, f"do_{verb}")(*arguments)

    def do_steps(self, count, seconds):
        for _ in range(int(count)):
            time.sleep(float(seconds))
            if self.rank == 0:
                self.trial.step(float(seconds), memory_bytes=1 << 20, loss=1.0)
            if self.trial.stop_requested():
                return

    def do_raise(self, words):
        raise RuntimeError(words)

    def do_memory(self):
        raise MemoryError

    def do_limit(self, mib):
        status = Path("/proc/self/status").read_text()
        data_kib = int(status.partition("VmData:")[2].split()[0])
        limit = (data_kib << 10) + (int(mib) << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    def do_allocate(self, mib):
        self.kept = b"x" * (int(mib) << 20)

    def do_groups(self):
        print(Path("/proc/self/cgroup").read_text())

    def do_exit(self, code):
        os._exit(int(code))

    def do_signal(self, name):
        os.kill(os.getpid(), signal.Signals[name])

    def do_ignore(self, name):
        signal.signal(signal.Signals[name], signal.SIG_IGN)

    def do_mourn(self, name):
        def lose(*_):
            raise RuntimeError("lost a peer")

        signal.signal(signal.Signals[name], lose)

    def do_daemon(self):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # inherited by what we start
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def do_forget(self):
        subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True, env={})

    def do_print(self, count):
        sys.stdout.write("x" * int(count) + "\nthe end\n")

    def do_line(self, text):
        with (self.trial.folder / "measurements.jsonl").open("a") as file:
            file.write(text.replace("\\n", "\n"))

    def do_variable(self, name):
        sys.stdout.write(f"rank {self.rank}: {os.environ.get(name)}\n")  # in one piece: ranks share the file

    def do_sleep(self, seconds):
        time.sleep(float(seconds))

    def do_shell(self, words):
        subprocess.run(words, shell=True, check=True)


def run(folder, rank, world):
    """Act; the caller reports what goes wrong."""
    Script(folder, rank).run()
    return 0


def main():
    """Run the rank that the environment names, as a cold start does."""
    folder, rank = Path(os.environ["OPPA_TRIAL"]), int(os.environ.get("RANK", 0))
    try:
        run(folder, rank, int(os.environ.get("WORLD_SIZE", 1)))
    except Exception as error:
        oppa_client.Trial(folder).end("out_of_memory" if isinstance(error, MemoryError) else "failed", rank=rank, error=error)
        raise


if __name__ == "__main__":
    main()
