"""Measure the control service under load: decision time, latency with a thousand jobs, malformed messages, kills, and its start.

The service is a separate process (`oppa control`); the jobs are connections from this one. Figures:
    decision_p50_ms      one decision over a table of 10,000 rows, median
    service_p99_ms       from a message to its acknowledgement, 99th percentile over all messages of all jobs
    messages_lost        messages sent that are not acknowledged, or that the service does not count at the end
    malformed_crashes    times that the service ended under 20,000 malformed messages
    blocked_share        share of training time in rank 0's calls, while the service is killed 20 times
    start_s              start of the service with a journal of a million messages: restore the jobs from their snapshots
    replay_s             the same without snapshots: replay all messages
"""

import asyncio
import contextlib
import dataclasses
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from experiments.lib.stated_table import stated_table
from experiments.service.served import EVERY, PRESENT, Served, facts, hello
from oppa import catalog
from oppa.control.decision import JobState
from oppa.control.policies.goodput import GoodputPolicy
from oppa.control.registry import policy_of
from oppa.control.service.burst_log import BurstLog
from oppa.control.service.client import ControlClient
from oppa.control.service.factory import ControllerFactory
from oppa.control.service.job_store import JobStore
from oppa.control.service.journal import Journal
from oppa.control.throughput_index import ThroughputIndex
from oppa.problem.configuration import Configuration
from oppa.problem.job import load_job
from oppa.protocol.messages import Ack, StepFacts, StepTaken, from_service
from oppa.report.record import Section
from oppa.table import Table, TableRow

CONNECTIONS = 16
"""Connections that send malformed messages at a time."""
STEP_S = 0.02
CAUGHT_UP_S = 180.0
"""Seconds within which a job must deliver its backlog; the service limits the rate at which it reads."""

Tell = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Defines the load on the service."""

    rows: int = 10_000
    decisions: int = 2_000
    jobs: int = 1_000
    seconds: int = 60
    """Seconds during which each job sends one message per second."""
    malformed: int = 20_000
    kills: int = 20
    between_kills_s: float = 1.0
    journal: int = 1_000_000
    """Messages in the journal with which the service starts."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFigures:
    """Holds the results of the benchmark."""

    load: Load
    decision_p50_ms: float
    decision_p99_ms: float
    service_p50_ms: float
    service_p99_ms: float
    messages: int
    messages_lost: int
    malformed_crashes: int
    malformed_growth_bytes: int
    """Resident memory of the service after the second half of the malformed messages, minus that after the first half."""
    blocked_share: float
    kills: int
    steps_unknown: int
    """Steps reported during the kills that the service does not count at the end."""
    journal_messages: int
    start_s: float
    replay_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "load"}

    @property
    def section(self) -> Section:
        """Return the figures as a table."""
        load = self.load
        rows = [
            (f"decision over {load.rows:,} rows, median (99th percentile)", f"{self.decision_p50_ms:.3g} ms ({self.decision_p99_ms:.3g})"),
            (
                f"{load.jobs:,} jobs, message to acknowledgement, median (99th percentile)",
                f"{self.service_p50_ms:.3g} ms ({self.service_p99_ms:.3g})",
            ),
            (f"messages lost, of {self.messages:,}", str(self.messages_lost)),
            (f"crashes under {load.malformed:,} malformed messages", str(self.malformed_crashes)),
            ("growth of the service after the second half of these", f"{self.malformed_growth_bytes / 2**20:.1f} MiB"),
            (f"time that rank 0's calls block, service killed {self.kills} times", f"{self.blocked_share:.3%}"),
            ("steps reported meanwhile that the service does not count at the end", str(self.steps_unknown)),
            (
                f"start with {self.journal_messages:,} messages in the journal (without snapshots)",
                f"{self.start_s:.3g} s ({self.replay_s:.3g})",
            ),
        ]
        text = f"Each job reports a step a second for {load.seconds} s and gets a decision every {EVERY} steps. All share one machine."
        return Section(title="The control service", text=text, columns=("what", ">figure"), rows=rows)


def measure(tell: Tell, load: Load | None = None) -> ServiceFigures:
    """Measure all figures; the default load takes eight minutes.

    Raises:
        EnvironmentLackingError: the example is missing, because this is no checkout, or the service does not start.
    """
    load = load or Load()
    table = _table(load.rows)
    tell(f"{load.decisions:,} decisions over {load.rows:,} rows")
    decisions = _decisions(table, load.decisions)
    with tempfile.TemporaryDirectory(prefix="oppa-service-") as folder:
        _table(100).write(Path(folder, "table"))
        with Served(Path(folder)) as served:
            tell(f"{load.jobs:,} jobs for {load.seconds} s")
            latencies, lost = asyncio.run(_load(served, load))
            tell(f"{load.malformed:,} malformed messages")
            crashes, growth = asyncio.run(_damage(served, load.malformed))
            tell(f"{load.kills} kills")
            blocked, unknown = _killing(served, load)
        tell(f"{load.journal:,} messages in the journal")
        replay_s, start_s = _starts(Path(folder, "journal"), load.journal)
    return ServiceFigures(
        load=load,
        decision_p50_ms=statistics.median(decisions) * 1e3,
        decision_p99_ms=float(np.quantile(decisions, 0.99)) * 1e3,
        service_p50_ms=statistics.median(latencies) * 1e3,
        service_p99_ms=float(np.quantile(latencies, 0.99)) * 1e3,
        messages=load.jobs * load.seconds,
        messages_lost=lost,
        malformed_crashes=crashes,
        malformed_growth_bytes=growth,
        blocked_share=blocked,
        kills=load.kills,
        steps_unknown=unknown,
        journal_messages=load.journal,
        start_s=start_s,
        replay_s=replay_s,
    )


def _table(rows: int) -> Table:
    """Return a table of layouts, batch sizes and micro-batches, with throughputs that saturate."""
    found = []
    for number in range(rows):
        layout, batch = divmod(number, 10)
        configuration = Configuration(dp=1, pp=1 + layout, global_batch=4 * 2**batch, micro_batch=4)
        time_s = 0.01 * (1 + layout % 97) + 1e-3 * (1 + layout % 31) * configuration.global_batch
        found.append(
            TableRow(configuration=configuration, steps_per_s=1 / time_s, log_stddev=0.02, memory_bytes=1, source="measured", trials=(1,))
        )
    return stated_table(load_job(catalog.root() / "examples" / "cpu.toml"), found, simulated=True)


def _decisions(table: Table, count: int) -> list[float]:
    """Return the seconds of each decision, with noise scales and configurations that change."""
    policy, times_s = GoodputPolicy(ThroughputIndex(table)), []
    for number in range(count):
        situation = JobState(
            configuration=table.rows[(7 * number) % len(table.rows)].configuration,
            noise_scale=10.0 * 1.002**number,
            elapsed_s=1e4,
            reconfiguration_s=5.0,
            remaining_samples=10**7,
        )
        begin_s = time.perf_counter()
        policy.decide(situation)
        times_s.append(time.perf_counter() - begin_s)
    return times_s


async def _load(served: Served, load: Load) -> tuple[list[float], int]:
    """Return the seconds from each message to its acknowledgement, and the number of messages that were lost."""
    latencies: list[float] = []
    connecting = asyncio.Semaphore(50)
    everybody = asyncio.Barrier(load.jobs)

    async def job(number: int) -> int:
        async with contextlib.AsyncExitStack() as stack:
            async with connecting:
                opened = await stack.enter_async_context(served.line(f"job-{number}"))
            await everybody.wait()
            return await _tell(opened, latencies, load.seconds, delay_s=number / load.jobs)

    acknowledged = await asyncio.gather(*(job(number) for number in range(load.jobs)))
    known = served.steps_known()
    lost = sum(load.seconds - min(reported, known.get(f"job-{number}", 0)) for number, reported in enumerate(acknowledged))
    return latencies, int(lost)


async def _tell(opened: ClientConnection, latencies: list[float], seconds: int, delay_s: float) -> int:
    """Send one message per second, and return the largest number that was acknowledged."""
    sent_s: dict[int, float] = {}

    async def listen() -> int:
        last = 0
        while last < seconds:
            message = from_service(await opened.recv())
            if isinstance(message, Ack):
                now = time.perf_counter()
                latencies.extend(now - sent_s[number] for number in range(last + 1, message.number + 1))
                last = message.number
        return last

    listening = asyncio.create_task(listen())
    begin_s = time.monotonic() + delay_s
    for number in range(1, seconds + 1):
        await asyncio.sleep(max(0.0, begin_s + number - 1 - time.monotonic()))
        text = StepTaken(number=number, **facts(number)).to_json()
        sent_s[number] = time.perf_counter()
        await opened.send(text)
    async with asyncio.timeout(30):
        return await listening


async def _damage(served: Served, malformed: int) -> tuple[int, int]:
    """Send malformed messages; return the number of crashes, and the growth in bytes from the first to the second half."""
    crashes, sizes = 0, list[int]()
    wrong = list(_malformed())
    for half in range(2):
        share = malformed // 2 // CONNECTIONS

        async def sender(connection: int, half: int = half, share: int = share) -> None:
            sent = 0
            while sent < share:
                with contextlib.suppress(ConnectionClosed, OSError):
                    async with served.line(f"damaged-{connection}") as opened:
                        while sent < share:
                            sent += 1
                            await opened.send(wrong[(sent + connection + half) % len(wrong)])
                            await opened.recv()

        await asyncio.gather(*(sender(connection) for connection in range(CONNECTIONS)))
        if not served.runs:
            crashes += 1
            served.start()
        sizes.append(served.resident_bytes)
    return crashes, max(0, sizes[1] - sizes[0])


def _malformed() -> Iterator[str | bytes]:
    """Yield messages that the protocol forbids."""
    good = json.loads(StepTaken(number=1, **facts(1)).to_json())
    yield from ("", "{", "null", "[]", "3", "\x00", "[" * 5000, b"\x00\xff", '{"type": "step"}', '{"type": "unknown"}')
    may_be_nothing = {"noise_scale", "learning_rate", "loss", "variance_ratio", "worker_variance_ratio", "accuracy"}
    may_be_below_0 = may_be_nothing - {"noise_scale", "learning_rate", "accuracy"}
    for name, field in StepTaken.model_fields.items():
        if field.is_required() or name == "type":
            yield json.dumps({key: value for key, value in good.items() if key != name})
        wrong = [*([] if name in may_be_nothing else [None]), *([] if name in may_be_below_0 else [-1]), "x" * 3000, [1], {"a": 1}, True]
        yield from (json.dumps({**good, name: value}) for value in wrong)
    for size in (-16, 10**400):
        yield json.dumps({**good, "configuration": {**good["configuration"], "global_batch": size}})
    for seconds in (0, 1e-200, 5e-324, 1e300):
        yield json.dumps({**good, "step_time_s": seconds})
    yield json.dumps(good).replace("100.0", "NaN")


def _killing(served: Served, load: Load) -> tuple[float, int]:
    """Return the share of a job's time spent in its calls while the service is killed, and the number of its steps that stay unknown.

    The job continues to train while the service is down.
    """
    steps, begin_s, killed_s = 0, time.monotonic(), time.monotonic()
    kills, killing = 0, None

    def killed() -> None:
        served.kill()
        served.start()

    with ControlClient(f"127.0.0.1:{served.port}", served.tokens.of_job("killed"), hello("killed")) as client:
        while kills < load.kills or killing is not None:
            time.sleep(STEP_S)  # a step of training
            steps += 1
            client.step(StepFacts(**facts(steps)))
            client.wanted(PRESENT)
            if killing is not None and not killing.is_alive():
                killing, killed_s = None, time.monotonic()
            elif killing is None and time.monotonic() - killed_s >= load.between_kills_s:
                killing, kills = threading.Thread(target=killed), kills + 1
                killing.start()
        trained_s = time.monotonic() - begin_s
        deadline = time.monotonic() + CAUGHT_UP_S
        while served.steps_known().get("killed", 0) < steps and time.monotonic() < deadline:
            time.sleep(0.1)
        return client.blocked_s / trained_s, steps - int(served.steps_known().get("killed", 0))


def _starts(folder: Path, messages: int) -> tuple[float, float]:
    """Return the seconds in which a service restores a job with so many messages: without a snapshot, and with one."""
    journal = Journal(folder)
    journal.begin("long", hello("long").to_json())
    journal.add(("long", number, StepTaken(number=number, **facts(number)).to_json()) for number in range(1, messages + 1))
    journal.close()
    control, times_s = ControllerFactory(_table(100), policy_of("goodput"), every=EVERY, policy="goodput"), list[float]()
    for _ in range(2):
        begin_s = time.perf_counter()
        store = JobStore(folder, control, BurstLog())
        times_s.append(time.perf_counter() - begin_s)
        assert store.jobs["long"].number == messages
        store.close()
    return times_s[0], times_s[1]
