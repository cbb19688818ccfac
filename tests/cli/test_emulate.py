"""`oppa emulate` as a user meets it: a command on hosts that are not there."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from oppa.launchers.emulation.netlab import netlab_lacking
from oppa.trials import processes
from oppa.trials.cgroups import quotas_lacking
from oppa.trials.processes import Process

LACKING = "; ".join(netlab_lacking())
needs_hosts = pytest.mark.skipif(bool(LACKING), reason=f"hosts cannot be emulated here: {LACKING}")
LINK = ("--bandwidth", "100mbit", "--latency", "1ms")
TORCHRUN = "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR $MASTER_PORT $GLOO_SOCKET_IFNAME $OMP_NUM_THREADS"


def shell(script):
    return "--", "sh", "-c", script


@pytest.fixture
def netlab(oppa):
    """Run it; whatever becomes of it, nothing of it is left."""
    before = processes.descendants(os.getpid())

    def run(*arguments, code=0):
        return oppa.process("emulate", *LINK, *arguments, code=code)  # it may become the program that it starts

    yield run
    wait_until_gone(processes.descendants(os.getpid()) - before)


@needs_hosts
def test_every_rank_gets_its_place_and_is_there(netlab):
    said = netlab("--ranks-per-host", 2, *shell(f"echo {TORCHRUN}; grep -o 'oppa0' /proc/net/dev"))
    reported = sorted(line for line in said.stdout.splitlines() if not line.endswith("] oppa0"))
    assert said.stdout.count("] oppa0") == 4
    assert reported == [
        f"[rank {n}] {n} 4 {n % 2} 2 {n // 2} 10.77.0.1 29500 oppa0 {os.environ.get('OMP_NUM_THREADS', 1)}" for n in range(4)
    ]
    assert said.stderr == "emulated hosts: 2 (from 10.77.0.1), ranks per host: 2, link: 100 Mbit/s, 1 ms one way\n"


@needs_hosts
def test_ranks_talk_over_the_link(netlab, tmp_path):
    program = tmp_path / "talk.py"
    program.write_text(TALK)
    said = netlab("--", sys.executable, program).stdout
    assert "[rank 0] heard b'hello' from 10.77.0.2" in said


TALK = """
import os, socket, time
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    with socket.create_server(address) as server:
        connection, peer = server.accept()
        print("heard", connection.recv(5), "from", peer[0])
else:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            socket.create_connection(address, timeout=5).sendall(b"hello")
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
"""


@needs_hosts
def test_a_rank_alone_speaks_for_itself(netlab):
    said = netlab("--hosts", 1, *shell("echo out; echo err >&2; printf unfinished"))
    assert said.stdout == "out\nunfinished\n"
    assert said.stderr.endswith("one way\nerr\n")


@needs_hosts
@pytest.mark.parametrize(("end", "code"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_a_rank_that_fails_ends_the_others_and_gives_the_exit_code(netlab, end, code):
    began_s = time.monotonic()
    said = netlab("--ranks-per-host", 2, *shell(f"test $RANK = 1 && {end}; sleep 100 & wait"), code=code)
    assert time.monotonic() - began_s < 20
    assert said.stdout == ""


@needs_hosts
def test_last_words_are_heard(netlab):
    failing, asked = "until test -e there; do sleep 0.02; done; exit 4", "trap 'echo asked; exit 3' TERM; touch there"
    said = netlab(*shell(f"test $RANK = 0 && {{ {failing}; }}; {asked}; while true; do sleep 0.02; done"), code=4)
    assert "[rank 1] asked\n" in said.stdout


def started(oppa, *command):
    """A netlab whose ranks print their numbers, and those."""
    running = oppa.start("emulate", *LINK, *command)
    pids = [int(running.stdout.readline().split()[-1]) for _ in range(2)]
    found = {each for each in processes.descendants(running.pid) if each.pid in pids}
    assert len(found) == 2
    return running, found


def wait_until(true) -> None:
    deadline_s = time.monotonic() + 10
    while not true() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert true()


def wait_until_gone(found: set[Process]) -> None:
    wait_until(lambda: not any(processes.is_living(each) for each in found))


@needs_hosts
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_nothing_runs_on_when_it_is_ended(oppa, netlab, number, code):
    running, ranks = started(oppa, *shell("echo $$; sleep 100 & wait"))
    everything = processes.descendants(running.pid)
    running.send_signal(number)
    running.communicate(timeout=20)
    assert running.returncode == code
    assert ranks < everything
    wait_until_gone(everything)


@needs_hosts
@pytest.mark.slow
def test_ranks_do_not_wait_for_a_link_that_somebody_ended(oppa, netlab):
    running, ranks = started(oppa, *shell("echo $$; sleep 100 & wait"))
    below = processes.descendants(running.pid)
    (relay,) = (each for each in below if b"emulation import switch" in command_line(each))
    os.kill(relay.pid, signal.SIGKILL)
    assert "the relay of the link was ended" in running.communicate(timeout=20)[1]
    assert running.returncode == 3
    wait_until_gone(ranks)


def command_line(process: Process) -> bytes:
    return Path(f"/proc/{process.pid}/cmdline").read_bytes()


OWN_OPPA = """
import json, os, subprocess, sys

facts = json.loads(os.environ["OPPA_NETLAB"])
for host in facts["hosts"]:
    routes = subprocess.run(["nsenter", f"--net={host['namespace']}", "cat", "/proc/net/fib_trie"], capture_output=True, text=True).stdout
    host["is there"] = f"-- {host['address']}\\n" in routes
print(json.dumps({**facts, "rank": os.environ.get("RANK"), "terminal": sys.argv[1:]}))
sys.exit(5)
"""


@needs_hosts
def test_oppa_itself_is_started_once_outside_and_gets_the_hosts(netlab, tmp_path):
    own = tmp_path / "oppa"
    own.write_text(f"#!{sys.executable}{OWN_OPPA}")
    own.chmod(0o755)
    reported = json.loads(
        netlab("--ranks-per-host", 2, "--cpus-per-rank", 0.5, "--", own, "tune", "--seed", 1, "--", "train", code=5).stdout
    )
    hosts, command = reported.pop("hosts"), reported.pop("command")
    assert (command[:2], command[-1]) == (["oppa", "emulate"], "--")
    assert [(host["address"], host["is there"]) for host in hosts] == [("10.77.0.1", True), ("10.77.0.2", True)]
    link = {"bandwidth_bytes_per_s": 12.5e6, "latency_s": 1e-3, "interface": "oppa0"}
    assert reported == {**link, "ranks_per_host": 2, "cpus_per_rank": 0.5, "rank": None, "terminal": ["tune", "--seed", "1", "--", "train"]}
    wait_until(lambda: not any(Path(host["namespace"]).exists() for host in hosts))


@pytest.mark.slow
@needs_hosts
def test_oppa_may_be_a_module_of_python_and_ranks_get_no_hosts(netlab):
    assert netlab("--", sys.executable, "-m", "oppa", "--version").stdout.startswith("oppa ")
    assert netlab(*shell("echo ${OPPA_NETLAB-none}")).stdout.count("none") == 2


@needs_hosts
@pytest.mark.skipif(bool(quotas_lacking()), reason=quotas_lacking())
def test_every_rank_has_a_quota_of_its_own(netlab):
    said = netlab("--cpus-per-rank", 0.5, *shell("grep -o 'oppa-netlab.*/rank.*' /proc/self/cgroup")).stdout.splitlines()
    assert sorted(line.rpartition("/")[2] for line in said) == ["rank0", "rank1"]


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (("--bandwidth", "fast"), "`fast` is not a bandwidth"),
        (("--bandwidth", "0mbit"), "nothing passes a link of `--bandwidth 0mbit`"),
        (("--latency", "1 mile"), "`1 mile` is not a duration"),
        (("--cpus-per-rank", "0"), "`--cpus-per-rank 0` is no number of cores"),
        (("--hosts", "0"), "`--hosts 0` is too small"),
        (("--hosts", "255"), "`--hosts 255` is too large"),
        (("--ranks-per-host", "0"), "`--ranks-per-host 0` is too small"),
        (("--hosts", "3", "--racks", "2", "--uplink", "1mbit"), "3 hosts do not fill 2 racks"),
        (("--racks", "2"), "`--racks 2` needs an uplink"),
        (("--uplink", "1mbit"), "`--uplink` needs several racks"),
        (("--racks", "2", "--uplink", "0mbit"), "nothing passes a link of `--uplink 0mbit`"),
    ],
)
def test_wrong_input_is_refused(oppa, arguments, wrong):
    assert wrong in oppa("emulate", *LINK, *arguments, "--", "true", code=2).stderr


@needs_hosts
def test_oppa_gets_the_slowest_line(netlab):
    racks = ("--hosts", 2, "--racks", 2, "--uplink", "10mbit")
    said = netlab(*racks, "--", sys.executable, "-m", "oppa", "--version")
    assert "racks: 2, joined by 10 Mbit/s each" in said.stderr


def test_a_program_that_is_not_there_is_refused(oppa):
    assert "there is no program `no-such-program`" in oppa("emulate", *LINK, "--", "no-such-program", code=2).stderr
