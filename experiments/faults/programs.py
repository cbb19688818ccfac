"""Define the programs of hostile trials: each writes what no program should, or attacks the study, oppa's processes or the machine.

A program is the text of a Python script that finds `folder`, the trial's, and the functions of PREPARE.
"""

from collections.abc import Mapping

PREPARE = """
import json, os, pathlib, shutil, sys, time
folder = pathlib.Path(os.environ["OPPA_TRIAL"])
steps, report = folder / "measurements.jsonl", folder / "outcome.json"
def lines(*values):
    with steps.open("a") as file:
        for number, value in enumerate(values):
            file.write(json.dumps({"step": number, "step_time_s": value, "memory_bytes": 1}) + "\\n")
def line(**values):
    with steps.open("a") as file:
        file.write(json.dumps({"step": 0, "step_time_s": 0.1, **values}) + "\\n")
def ends(**values):
    report.write_text(json.dumps({"outcome": "failed", "cause": "", **values}))
study = folder.parent.parent
def parent(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
def daemon(seconds):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve("/bin/sleep", ["sleep", str(seconds)], {})
        os._exit(0)
    os.wait()
"""
"""The lines that every program begins with."""
GOOD = "lines(*[0.01] * 4)\n"
"""A program that reports four steps, as it should."""
SLEEP_S = 86_413.5
"""Seconds that the daemons of hostile trials sleep, by which a survivor is recognised."""
HOSTILE: Mapping[str, str] = {
    "tiny steps": "lines(*[1e-300] * 4)",
    "huge steps": "lines(*[1e308] * 4)",
    "negative steps": "lines(*[-1.0] * 4)",
    "no time": "lines(*[0] * 4)",
    "memory of 2^63": "line(memory_bytes=2**63)",
    "negative memory": "line(memory_bytes=-1)",
    "digits": "steps.write_text('{\"step\": 0, \"step_time_s\": 1' + '0' * 400 + '}\\n')",
    "more digits than Python reads": "steps.write_text('{\"step\": 0, \"step_time_s\": 1' + '0' * 10000 + '}\\n')",
    "a loss of 400 digits": "steps.write_text('{\"step\": 0, \"step_time_s\": 1, \"loss\": 1' + '0' * 400 + '}\\n')",
    "NaN": "lines(*[float('nan')] * 4)",
    "infinity": "lines(*[float('inf')] * 4)",
    "a step of 2^70": "line(step=2**70)",
    "a step twice": "line(); line(); line(); line()",
    "steps backwards": "line(step=3); line(step=2); line(step=1); line(step=0)",
    "truth": "line(step=True)",
    "a list": "steps.write_text('[1, 2]\\n')",
    "deep": "steps.write_text('[' * 30000 + ']' * 30000 + '\\n')",
    "no text": "steps.write_bytes(b'\\xff\\xfe\\n')",
    "zeros": "steps.write_bytes(bytes(1000) + b'\\n')",
    "a line without an end": "steps.write_bytes(b'x' * (1 << 20)); time.sleep(3)",
    "a sparse gigabyte": "os.truncate(steps, 1 << 30); time.sleep(3)",
    "a FIFO for steps": "steps.unlink(); os.mkfifo(steps); time.sleep(3)",
    "a directory for steps": "steps.unlink(); steps.mkdir(); time.sleep(1)",
    "a link for steps": "steps.unlink(); steps.symlink_to('/dev/zero'); time.sleep(1)",
    "a FIFO for its outcome": "os.mkfifo(report)",
    "a directory for its outcome": "report.mkdir()",
    "a link for its outcome": "report.symlink_to('/dev/zero')",
    "a link to a secret": "report.symlink_to('/etc/passwd')",
    "a sparse outcome": "report.touch(); os.truncate(report, 1 << 40)",
    "a deep outcome": "report.write_text('[' * 100000)",
    "a rank of 2^70": "ends(rank=2**70)",
    "a negative rank": "ends(rank=-1)",
    "a lone surrogate": 'report.write_text(\'{"outcome": "failed", "cause": "\\\\ud800"}\')',
    "escapes": "ends(cause='\\x1b]0;evil\\x07\\x1b[2J<b>[red]', traceback='\\x00\\x1b[31m')",
    "a long cause": "ends(cause='x' * 500000)",
    "an outcome of another type": "ends(outcome=['completed'])",
    "an outcome that programs have not": "ends(outcome='interrupted')",
    "a FIFO for a log": "log = folder / 'stdout.log'; log.unlink(); os.mkfifo(log); sys.exit(3)",
    "a link for a log": "log = folder / 'stderr.log'; log.unlink(); log.symlink_to('/dev/zero'); sys.exit(3)",
    "a directory for a log": "log = folder / 'stderr.log'; log.unlink(); log.mkdir(); sys.exit(3)",
    "no folder": "shutil.rmtree(folder); sys.exit(3)",
    "no folder, in peace": "shutil.rmtree(folder)",
    "a file for its folder": "shutil.rmtree(folder); folder.touch()",
    "a bar that jumps": "for done in (1, 2, 10**12): print(f'{done}/9 [00:01<00:09, 9.71it/s]', flush=True)",
    "rates of 0": "print('0.0 it/s\\n' * 4)",
    "rates without bounds": "print('1e308 it/s\\n' * 4)",
    "steps of many digits": "print(f'step {9 ** 2000}: 85 ms\\n' * 4)",
    "a line of digits": "print(('step 1 ' * 200 + '1' * 100000 + '\\n') * 4)",
    "nothing": "",
    "an exit": "sys.exit(7)",
    "a kill": "os.kill(os.getpid(), 9)",
}
"""Programs whose trial fails, whatever they report."""
ALLOWED: Mapping[str, str] = {
    "more fields": "for number in range(4): line(step=number, other={'a': [1]})",
    "a loss that is not finite": "for number in range(4): line(step=number, loss=float('nan'))",
}
"""Programs that are unusual, and whose trial completes."""
INTRUSIVE: Mapping[str, str] = {
    "it removes the study": f"(study / 'study.db').unlink()\n{GOOD}",
    "it removes the study and its log": f"[each.unlink() for each in study.glob('study.db*')]\n{GOOD}",
    "it removes the log of the study": f"(study / 'study.db-wal').unlink()\n{GOOD}",
    "it overwrites the study": f"(study / 'study.db').write_bytes(b'x' * 100000)\n{GOOD}",
    "it empties the study": f"os.truncate(study / 'study.db', 0)\n{GOOD}",
    "it replaces the study by a folder": f"(study / 'study.db').unlink(); (study / 'study.db').mkdir()\n{GOOD}",
    "it replaces the study by a FIFO": f"(study / 'study.db').unlink(); os.mkfifo(study / 'study.db')\n{GOOD}",
    "it replaces the study by a link": f"(study / 'study.db').unlink(); (study / 'study.db').symlink_to('/dev/zero')\n{GOOD}",
    "it removes other trials": f"[shutil.rmtree(each) for each in folder.parent.iterdir() if each != folder]\n{GOOD}",
    "it leaves a daemon without a name": f"daemon({SLEEP_S})\n{GOOD}",
    "it leaves a daemon and kills the shim": f"daemon({SLEEP_S}); os.kill(parent(os.getppid()), 9); time.sleep(5)",
    "it kills the process that forked it": "os.kill(os.getppid(), 9); time.sleep(5)",
    "it stops itself": "os.kill(os.getpid(), 19)",
    "it ignores signals": f"import signal; signal.signal(15, signal.SIG_IGN); daemon({SLEEP_S})\n{GOOD}time.sleep(60)",
    "it writes a long log": f"print('x' * (64 << 20)); print('\\x1b[2J' * 1000)\n{GOOD}",
}
"""Programs that attack what is not theirs. Their trial may complete or fail; the study, the tuner and the next trial are as before."""
