"""Train a model of one number with one plain Python rank on each host; the ranks meet over TCP as torchrun's would.

Sample n pulls the weight towards n % 7. It takes as long as stated, so that more hosts are faster, and no time once the output folder
has the file `hurry`. Each rank appends its attempt, and the numbers of its samples, to a file of its own.
"""

import argparse
import json
import os
import signal
import socket
import struct
import time
from pathlib import Path

import oppa_client


class Group:
    """Adds up a number of each rank, in the order of ranks."""

    def __init__(self, rank, ranks):
        self.rank, self.peers = rank, {}
        place = os.environ.get("PET_MASTER_ADDR", "127.0.0.1"), int(os.environ.get("PET_MASTER_PORT", "0"))
        if rank:
            self.peers[0] = self.connected(place)
            self.peers[0].sendall(struct.pack("d", rank))
        elif ranks > 1:
            with socket.create_server(place) as server:
                server.settimeout(60)
                for _ in range(ranks - 1):
                    peer, _ = server.accept()
                    self.peers[int(self.received(peer))] = peer

    def connected(self, place):
        deadline = time.monotonic() + 60
        while True:
            try:
                return socket.create_connection(place)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def received(self, peer):
        data = peer.recv(8, socket.MSG_WAITALL)
        if len(data) < 8:
            raise SystemExit("a rank is gone")
        return struct.unpack("d", data)[0]

    def sum(self, value):
        if self.rank:
            self.peers[0].sendall(struct.pack("d", value))
            return self.received(self.peers[0])
        total = sum((self.received(peer) for _, peer in sorted(self.peers.items())), start=value)
        for peer in self.peers.values():
            peer.sendall(struct.pack("d", total))
        return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--micro-batch", type=int)
    parser.add_argument("--sample-s", type=float, default=0.005)
    parser.add_argument("--late-start", action="store_true", help="start on other hosts only after the present ranks have left")
    parser.add_argument("--dies-early", action="store_true", help="end with an error while other ranks still train")
    parser.add_argument(
        "--dies-on", type=int, help="the last of this number of ranks dies in its first step, after rank 0 has its gradient"
    )
    options = parser.parse_args()
    if options.dies_early and (Path(os.environ["OPPA_TRIAL"]) / "hold.json").exists():
        raise SystemExit("the port is taken")
    rank, ranks = int(os.environ.get("PET_NODE_RANK", "0")), int(os.environ.get("PET_NNODES", "1"))
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    able = {"batch": "both", "micro_batch": True, "restart": True, "elastic": True, "early_start": not options.late_start}
    run = oppa_client.open_run(able)
    group = Group(rank, ranks)
    options.output.mkdir(parents=True, exist_ok=True)
    weight = json.loads(Path(run.resume.checkpoint).read_text()) if run.resume else 0.0
    with (options.output / f"samples-{rank}.jsonl").open("a") as log:
        while not run.leaving:
            plan = run.plan
            numbers = [number for part in plan.micro_batches(rank, ranks) for number in part]
            print(json.dumps([Path(os.environ["OPPA_TRIAL"]).name, plan.step, numbers]), file=log, flush=True)
            time.sleep(0.0 if (options.output / "hurry").exists() else options.sample_s * len(numbers))
            gradient = group.sum(sum(weight - number % 7 for number in numbers)) / plan.global_batch
            weight -= 0.1 * gradient
            if ranks == options.dies_on and rank == ranks - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            run.step(samples=plan.global_batch, loss=weight)
    if not run.leaving.save:
        return
    checkpoint = options.output / f"checkpoint-{run.plan.step}.json"
    if rank == 0:
        checkpoint.write_text(json.dumps(weight))
    group.sum(0.0)
    run.leave(checkpoint)


if __name__ == "__main__":
    main()
