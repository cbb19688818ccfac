"""A tuner reduced to its loop: `driver.py STUDY FOLDER warm|cold SILENCE_S SCRIPT...` runs one trial per script.

SILENCE_S is the shortest silence that is a hang of the first trial; others have the default, as a loaded machine may let them wait.

SIGINT and SIGTERM end it in good order, as they end a tuner.
"""

import json
import re
import signal
import sys
from pathlib import Path

from oppa.problem.cluster import Cluster
from oppa.problem.configuration import Configuration
from oppa.problem.model import Model
from oppa.problem.training import Limits, Training
from oppa.trials.local import LocalLauncher
from oppa.trials.monitor import HANG_S
from oppa.trials.runner import load_runner
from oppa.trials.trial import run_trial
from oppa.trials.trial_folder import TrialSpec

RANKS, GRACE_S = 2, 1.0
RUNNER = Path(__file__).parents[1] / "trials" / "runners" / "script"


def spec(study, trial, script):
    return TrialSpec(
        study=study,
        trial=trial,
        configuration=Configuration(dp=RANKS, global_batch=8, micro_batch=1),
        stated_model=Model(layers=2, hidden=8, heads=2, kv_heads=2, ffn=16, vocab=32, seq_len=8),
        cluster=Cluster(devices_per_host=RANKS, memory_limit_bytes=1 << 30),
        training=Training(corpus=script),
        steps=max(int(count) for count in re.findall(r"^steps (\d+)", script, re.MULTILINE)),  # a script alone ends its trial
    )


def main(study, folder, kind, silence_s, *scripts):
    interrupted = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: interrupted.append(True))

    def on_tick():
        if interrupted:
            raise KeyboardInterrupt

    with LocalLauncher(load_runner(RUNNER), study=study, grace_s=GRACE_S, warm=kind == "warm") as launcher:
        for trial, script in enumerate(scripts):
            where = Path(folder, str(trial))
            limits = Limits(grace_s=GRACE_S, device_lock=False)  # several drivers may run at once
            hang_s = HANG_S if trial else float(silence_s)
            result = run_trial(launcher, where, spec(study, trial, script), limits=limits, on_tick=on_tick, hang_s=hang_s)
            with Path(folder, "results.jsonl").open("a") as file:
                file.write(json.dumps({"outcome": result.outcome, "cause": result.cause}) + "\n")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
