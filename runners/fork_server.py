"""Start the ranks of all trials, one after the other, in one parent process that uses the standard library alone.

The parent is started as `python -P fork_server.py CONTROL [PROGRAM]`. With a program (a warm start) it imports the program once, and each
rank is a fork that calls the program's `run(folder, rank, world) -> exit code`. Without one (a cold start) each rank executes its own
command.

It receives requests (<-) and sends events (->) over the socket CONTROL, one JSON message per packet:

    <- {"launch_id": 1, "folder": of the trial, "logs": folder,
        "ranks": [{"rank": 0, "world": 4, "argv": [...] or null, "environment": {...}, "groups": [...]}, ...]}
    -> {"event": "started", "launch_id": 1, "pid": of this parent}
    -> {"event": "exit", "launch_id": 1, "rank": 0, "code": 0 or null, "signal": null or 9, "time": unix seconds}
    -> {"event": "failed", "launch_id": 1 (null: the import), "cause": ..., "traceback": ...}

When the socket closes, the parent starts no more ranks, and ends after its last rank. When the parent dies, its ranks are killed.
"""

import contextlib
import ctypes
import gc
import importlib.util
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

MAX_MESSAGE = 1 << 20
PR_SET_PDEATHSIG = 1


class Parent:
    """Starts ranks on request, and reports their ends."""

    def __init__(self, control, program):
        self.control = control
        self.program = program
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ, self.hear)
        self.listening = True

    def serve(self):
        """Handle requests and ends of ranks until the socket has closed and no rank is left."""
        while self.listening or len(self.selector.get_map()) > 0:
            for key, _ in self.selector.select():
                key.data()

    def tell(self, event, **facts):
        """Send an event. An error is ignored, because `hear` detects that the tuner is gone."""
        with contextlib.suppress(OSError):
            self.control.send(json.dumps({"event": event, **facts}).encode())

    def hear(self):
        """Start the ranks that a request describes, or stop listening if the socket has closed."""
        packet = self.control.recv(MAX_MESSAGE)
        if not packet:
            self.listening = False
            self.selector.unregister(self.control)
            return
        request = json.loads(packet)
        try:
            for rank in request["ranks"]:
                self.start(request, rank)
            self.tell("started", launch_id=request["launch_id"], pid=os.getpid())
        except Exception as error:  # noqa: BLE001 - every error is reported to the tuner
            self.tell("failed", launch_id=request["launch_id"], cause=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())

    def start(self, request, rank):
        """Fork one rank, and monitor it until it ends."""
        threads = len(list(Path("/proc/self/task").iterdir()))
        assert threads == 1, f"the process has {threads} threads, but a fork copies only one and may inherit held locks: set `warm = false`"
        own_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            become_rank(self, own_pid, request, rank)
        handle = os.pidfd_open(pid)
        self.selector.register(handle, selectors.EVENT_READ, lambda: self.ended(request["launch_id"], rank["rank"], pid, handle))

    def ended(self, launch_id, rank, pid, handle):
        """Collect the exit status of a rank that has ended, and report it."""
        self.selector.unregister(handle)
        os.close(handle)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        code, number = (code, None) if code >= 0 else (None, -code)
        self.tell("exit", launch_id=launch_id, rank=rank, code=code, signal=number, time=time.time())


def become_rank(parent, parent_pid, request, rank):
    """Run the rank in the forked child, and exit; never return."""
    code = 1
    try:
        settle(parent, parent_pid, Path(request["logs"]), rank)
        if rank["argv"]:
            os.execvpe(rank["argv"][0], rank["argv"], os.environ)
        code = call(parent.program, Path(request["folder"]), rank["rank"], rank["world"])
    except BaseException:  # noqa: BLE001 - a fork must not continue as a second parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def settle(parent, parent_pid, logs, rank):
    """Give the rank its own session, environment, logs and CPU quota, so that it shares only memory with the parent."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)
    parent.selector.close()
    parent.control.close()
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # if the host runs out of memory, the kernel kills a rank first
    for group in rank["groups"]:
        Path(group, "cgroup.procs").write_text("0")
    for name, descriptor in (("stdout.log", 1), ("stderr.log", 2)):
        os.dup2(os.open(logs / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), descriptor)
    os.environ.update(rank["environment"])


def call(program, folder, rank, world):
    """Return the program's exit code, and report an error that the program did not report itself."""
    try:
        return int(program.run(folder, rank, world) or 0)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:  # noqa: BLE001 - every error is reported to the tuner
        traceback.print_exc()
        import oppa_client  # client/ is on PYTHONPATH

        outcome = "out_of_memory" if isinstance(error, MemoryError) else "failed"
        oppa_client.Trial(folder).end(outcome, rank=rank, error=error)
        return 1


def load(path):
    """Import the program from its file, as the module `runner_program`."""
    spec = importlib.util.spec_from_file_location("runner_program", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main():
    """Import the program if there is one, then serve."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    parent = Parent(control, None)
    gc.disable()  # collections would take a fifth of the import, and find nothing
    try:
        parent.program = load(sys.argv[2]) if len(sys.argv) > 2 else None
    except BaseException as error:
        parent.tell("failed", launch_id=None, cause=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
        raise
    gc.freeze()  # keeps the memory of imported modules shared with the ranks
    gc.enable()
    # SIGTERM is ignored, because the parent's death would kill its ranks at once: it ends after them.
    signal.signal(signal.SIGTERM, lambda *_: None)
    parent.serve()


if __name__ == "__main__":
    main()
