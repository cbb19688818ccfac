"""Train a model of one number with plain Python ranks, as a user's own trainer does: without torch it starts in 0.1 s.

Each sample n pulls the weight towards a target of its own. Ranks add up their gradients in a shared array, in the order of ranks. With
`--misbehave` it breaks its contract, and with `--empty` it writes an unreadable checkpoint. It logs the samples of each rank.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import os
import signal
import time
from pathlib import Path

import oppa_client


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--recompute", default="none")
    parser.add_argument("--sleep", type=float, default=0.005)
    parser.add_argument("--noise", type=float, default=None)
    parser.add_argument("--quiet-at", type=int, default=10**9, help="the least batch at which the noise is 1 sample")
    parser.add_argument("--overflow-at", type=int, default=None, help="the step whose gradients are not finite, which changes no weight")
    parser.add_argument("--no-rate", action="store_true", help="report no learning rate")
    parser.add_argument("--loss-every", type=int, default=1, help="steps from one that reports its loss to the next")
    parser.add_argument("--lead", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=10**9)
    parser.add_argument("--batch", default="both")
    parser.add_argument("--no-restart", action="store_true")
    parser.add_argument("--early-start", action="store_true")
    parser.add_argument("--own-end", type=int, default=None)
    parser.add_argument("--misbehave", default="")
    parser.add_argument("--empty", default="", help="the step of the checkpoints that are empty, or why the trainer leaves with one")
    return parser.parse_args()


def once(options, what):
    """Return True in the first attempt that asks."""
    try:
        (options.folder / f"did-{what}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def misbehave_at(options, run, rank, steps):
    """Break the contract before a step, after so many steps of this attempt; return what happens in it."""
    name, _, at = options.misbehave.partition(":")
    if name == "crash" and rank == options.ranks - 1 and run.plan.step == int(at) and once(options, name):
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "dies" and run.plan.step == int(at):
        os.kill(os.getpid(), signal.SIGKILL)
    if name.startswith("pause") and run.plan.step == int(at) and once(options, "pause"):
        with run.paused("eval", at_most_s=60.0 if name == "pause" else 0.1):
            time.sleep(4)
    needed = {"memory": run.plan.global_batch - 1, "memory-in-full": steps if options.recompute == "full" else -1}.get(name)
    if needed is not None and needed >= int(at):
        raise MemoryError("CUDA out of memory")
    if name == "hang" and run.plan.step == int(at) and (options.folder / "did-hang").exists() + once(options, f"hang{rank}") == 1:
        time.sleep(1000)
    return name


def fail_in_new_layout(options, rank, steps):
    """Fail in one phase of a restart in another layout: while loading (-1 steps), or in a step."""
    name = options.misbehave
    if options.recompute != "full" or rank != options.ranks - 1:
        return
    if name == "hangs-loading" and steps < 0:
        time.sleep(1000)
    at = {"dies-loading": -1, "dies-at-first": 0, "dies-at-second": 1}.get(name)
    if at == steps and (at < 1 or once(options, name)):
        os.kill(os.getpid(), signal.SIGKILL)


def fail_resumed(options):
    """Fail in the first N attempts that resume, as on a machine that breaks and is repaired."""
    name, _, most = options.misbehave.partition(":")
    if name == "fails-resumed" and any(once(options, f"fail-{number}") for number in range(int(most))):
        raise SystemExit("the device is gone")


def train(rank, options, barrier, shares):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(options.ranks)}
    if options.misbehave.endswith("-if-early") and (Path(os.environ["OPPA_TRIAL"]) / "hold.json").exists():
        if options.misbehave == "dies-if-early":
            raise SystemExit("the port is taken")
        time.sleep(1000)
    if (spoken := {"old-client": 0, "new-client": 9}.get(options.misbehave)) is not None:
        oppa_client.run_files.PROTOCOL = oppa_client.run_files.OLDEST = spoken
    able = {"batch": options.batch, "micro_batch": True, "restart": not options.no_restart, "elastic": True}
    run = oppa_client.open_run({**able, "early_start": options.early_start}, lead=options.lead)
    weight, samples_seen = 0.0, 0
    if options.misbehave == "not-in-full" and options.recompute == "full":
        raise SystemExit("this layout is not built")
    if options.misbehave != "no-resume" and run.resume:
        fail_resumed(options)
        state = json.loads(Path(run.resume.checkpoint).read_text())
        weight, samples_seen = state["weight"], state["samples"]
        assert samples_seen == run.resume.samples
    fail_in_new_layout(options, rank, -1)
    log = (options.folder / f"samples-{rank}.jsonl").open("a")
    for steps in itertools.count():
        if run.leaving and not (options.misbehave == "saves-nothing" and run.leaving.reason != "finished"):
            break
        if options.own_end is not None and run.plan.progress >= options.own_end:
            run.leave(save(options, rank, weight, run), finished=True)
            return
        if options.misbehave == "never-leaves" and steps == 3:
            raise SystemExit(0)
        plan, what = run.plan, misbehave_at(options, run, rank, steps)
        batches = plan.micro_batches(rank, options.ranks)
        log.write(json.dumps([plan.step, [number for batch in batches for number in batch]]) + "\n")
        log.flush()
        shares[rank] = sum(weight - (number % 7) for batch in batches for number in batch)
        time.sleep(options.sleep)
        barrier.wait()
        fail_in_new_layout(options, rank, steps)
        gradient = sum(shares) / plan.global_batch
        barrier.wait()
        overflows = plan.step == options.overflow_at
        weight -= 0.0 if overflows else 0.1 * plan.learning_rate_factor * gradient
        taken = 8 if what == "ignores" and plan.number > 1 else plan.global_batch + (what == "lies" and plan.step == 3)
        scale = math.inf if overflows else options.noise if plan.global_batch < options.quiet_at else 1.0
        noise = None if scale is None else {"noise_scale": scale, "health": "healthy", "variance_ratio": scale}
        loss = math.inf if overflows else abs(gradient)
        loss = None if plan.step % options.loss_every else loss
        rate = None if options.no_rate else 0.1 * plan.learning_rate_factor
        run.step(samples=taken, loss=loss, skipped=overflows, noise=noise, learning_rate=rate)
        if run.plan.step % options.save_every == 0 and not run.leaving:
            with run.paused("save"):
                run.saved(save(options, rank, weight, run))
    if options.misbehave == "dies-saving" and run.leaving.reason == "layout":
        os.kill(os.getpid(), signal.SIGKILL)
    if run.leaving.save:
        checkpoint = save(options, rank, weight, run)
        barrier.wait()
        run.leave(checkpoint)
        if options.misbehave == "aborts":
            os.abort()
        if options.misbehave == "lingers" and run.leaving.reason == "layout":
            time.sleep(1000)


def save(options, rank, weight, run):
    path = options.folder / f"checkpoint-{run.plan.step}.json"
    is_empty = options.empty in (str(run.plan.step), run.leaving and run.leaving.reason)
    if rank == 0:
        path.write_text("" if is_empty else json.dumps({"weight": weight, "samples": run.plan.progress}))
    return path


def main():
    options = arguments()
    options.folder.mkdir(exist_ok=True, parents=True)
    context = multiprocessing.get_context("fork")
    barrier, shares = context.Barrier(options.ranks), context.Array("d", options.ranks, lock=False)
    if options.ranks == 1:
        train(0, options, barrier, shares)
        return
    ranks = [context.Process(target=train, args=(rank, options, barrier, shares)) for rank in range(options.ranks)]
    for each in ranks:
        each.start()
    while any(each.is_alive() for each in ranks):
        if any(each.exitcode for each in ranks):
            for each in ranks:
                each.kill()
            raise SystemExit(1)
        time.sleep(0.01)
    raise SystemExit(max(abs(each.exitcode or 0) for each in ranks))


if __name__ == "__main__":
    main()
