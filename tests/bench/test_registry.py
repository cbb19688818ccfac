"""The list of benchmarks: it has every command and every record, and a digest changes with inputs, and with nothing else."""

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from experiments.goodput import pollux
from experiments.goodput.simulated import CASES
from experiments.profile.simulated import JOBS
from experiments.registry import COPUS, OVERHEAD, POLLUX, PROFILED, SHORT, TRANSFERRED
from experiments.timings.overhead import SIZES
from experiments.transfer import cases
from oppa import catalog
from oppa.bench.checkout import NAMES, commands
from oppa.bench.ci import COMPARISONS
from oppa.bench.declared import SIMULATED, content_hash, simulated_job
from oppa.bench.registry import benchmarks, inputs
from oppa.bench.search import Comparison
from oppa.bench.suites import SUITES
from oppa.bench.tasks import simulated_tasks
from oppa.cli.commands.bench import bench
from oppa.errors import InputError
from tests.command_line import commands_below
from tests.sampling import nightly

HERE = catalog.root()
MOE = simulated_job("moe").as_posix()
DATA = "OPPA_DATA/nanotron_h100.csv"


def together(*suites: str) -> set[str]:
    """Return the records of `--suite all` that depend on some suites."""
    return {"results/search/all", *(f"results/search/all/{suite}" for suite in suites)}


TRANSFER = {"results/transfer"}
SIMULATED_SUITES = together("simulated", "adversarial")
SIMULATED_RECORDS = {"results/search/simulated", "results/ci", "results/stopping", "results/profile"} | SIMULATED_SUITES


def test_every_command_is_in_the_list_and_the_other_way_round() -> None:
    assert set(commands_below(typer.main.get_command(bench))) == {*benchmarks(), "all"}


def test_an_installed_package_names_every_experiment() -> None:
    assert set(NAMES) == set(commands())


def test_the_page_of_the_experiments_names_each_with_its_folder() -> None:
    page = (HERE / "experiments" / "README.md").read_text()
    folders = {folder.parent.name for folder in (HERE / "experiments").glob("*/__init__.py")}
    assert not [name for name in {*folders, *commands()} - {"all"} if f"`{name}`" not in page and f"`{name}/`" not in page]


def test_every_record_is_a_benchmarks_or_a_studys_or_a_machines() -> None:
    pages = {path.parent: path.read_text() for name in ("table.md", "README.md") for path in (HERE / "results").rglob(name)}
    studies = {folder for folder, text in pages.items() if text.startswith("# Study of")}
    machines = {folder for folder, text in pages.items() if "- command: `oppa doctor --measure" in text}
    listed = {HERE / recorded.folder for benchmark in benchmarks().values() for recorded in benchmark.recorded}
    assert pages.keys() - studies - machines <= listed
    assert machines and not machines & listed


def test_every_declared_file_is_there() -> None:
    for name, benchmark in benchmarks().items():
        for recorded in benchmark.recorded:
            absent = [each for each in recorded.inputs().absent if not each.startswith("OPPA_DATA/")]
            assert not absent, name


def test_tasks_are_those_that_the_benchmarks_run() -> None:
    assert tuple(task.name for task in simulated_tasks()) == SIMULATED == SUITES["simulated"].declared.tasks
    assert set(CASES) == set(COPUS) and set(JOBS) == set(PROFILED) and set(map(str, SIZES)) == set(OVERHEAD)
    assert tuple(cases.CASES) == TRANSFERRED
    assert {each.suite for each in COMPARISONS} == {"cpu", "simulated"}


@pytest.mark.skipif(bool(benchmarks()["goodput-pollux"].declared.lacking), reason="NOT TESTED: Pollux's measurements are not here")
def test_so_are_pollux_workloads() -> None:
    assert all(len(pollux.workload(name).table.rows) > 1 for name in POLLUX)


def test_an_argument_changes_the_digest() -> None:
    assert inputs("profile", repeats=2).digest == inputs("profile", repeats=2).digest != inputs("profile", repeats=3).digest
    assert inputs("profile", ("moe",), repeats=2).tasks == ("moe",)
    with pytest.raises(InputError, match="`vit` is not a task"):
        inputs("profile", ("vit",), repeats=2)


def test_a_log_knows_its_tasks() -> None:
    comparison = Comparison(suite="simulated", trials=40)
    protocol = comparison.protocol([])
    assert protocol["tasks"] == list(SIMULATED) and protocol["files"][MOE] == SUITES["simulated"].declared.inputs().files[MOE]


def test_what_is_measured_without_a_name_takes_seconds() -> None:
    assert SHORT == ("help", "start-up", "prior", "machine")


class Checkout:
    """Holds a copy of the project that can be changed, and what `oppa bench` lists there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder / "project", folder / "data"
        for name in ("oppa", "experiments", "runners", "priors", "search_spaces", "examples", "results"):
            shutil.copytree(HERE / name, self.folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.svg", "*.csv.gz"))
        self.data.mkdir()
        for name in {name for benchmark in benchmarks().values() for name in benchmark.declared.data}:
            (self.data / name).write_text("measured = 1\n")

    def run(self, *words: str, code: int = 0) -> str:
        environment = {**os.environ, "OPPA_DATA": str(self.data), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, *words], cwd=self.folder, capture_output=True, text=True, env=environment)
        assert done.returncode == code, done.stderr
        return done.stdout

    @functools.cached_property
    def unchanged(self) -> dict[str, str]:
        """Return the digests of the copy before any change; each test puts back what it changes."""
        return self.digests()

    def digests(self) -> dict[str, str]:
        return {each["record"]: each["digest_now"] for each in json.loads(self.run("-m", "oppa", "bench", "--json"))}

    def states(self, code: int) -> dict[str, tuple[str, list[str]]]:
        listed = json.loads(self.run("-m", "oppa", "bench", "--stale", "--json", code=code))
        return {each["record"]: (each["state"], each["why"]) for each in listed}

    def path(self, name: str) -> Path:
        return self.data / name.removeprefix("OPPA_DATA/") if name.startswith("OPPA_DATA/") else self.folder / name


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("checkout"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changed"),
    [
        (MOE, SIMULATED_RECORDS | TRANSFER),
        *nightly(
            ("runners/simulated/jobs/llama-3.2-1b.toml", SIMULATED_RECORDS | {"results/drift"}),
            ("runners/simulated/jobs/copus-3b.toml", {"results/goodput-simulated"} | TRANSFER),
        ),
        ("priors/clusters/RTX3080.toml", SIMULATED_RECORDS | {"results/drift"}),
        ("search_spaces/megatron.toml", {"results/goodput-simulated", "results/proxy"} | TRANSFER | together("moe", "long-context")),
        ("priors/hardware/RTX3080.toml", {"results/search/simulated", "results/profile"} | SIMULATED_SUITES),
        ("results/cpu-exhaustive/trials.csv", {"results/search/cpu", "results/ci"} | together("cpu")),
        ("examples/digits.py", {"results/policies"}),
        ("OPPA_DATA/adaptdl_gradstats.csv", {"results/goodput-pollux"}),
        ("experiments/stopping/run.py", set()),
        *nightly(("oppa/simulator/simulator.py", set())),
    ],
)
def test_a_change_of_an_input_changes_the_digests_of_what_declares_it(checkout, name, changed) -> None:
    before, path = checkout.unchanged, checkout.path(name)
    now = digests_with(checkout, path, b"\nadded = 1\n" if path.suffix == ".toml" else b"\n")
    assert {record for record in before if now[record] != before[record]} == changed


def digests_with(checkout, path: Path, added: bytes) -> dict[str, str]:
    content = path.read_bytes()
    path.write_bytes(content + added)
    try:
        return checkout.digests()
    finally:
        path.write_bytes(content)


@pytest.mark.slow
def test_a_comment_and_another_name_of_a_device_change_no_digest(checkout) -> None:
    before, path = checkout.unchanged, checkout.path("priors/hardware/RTX3080.toml")
    assert digests_with(checkout, path, b"# a comment\n") == before
    content = path.read_bytes()
    try:
        path.write_bytes(content.replace(b"aliases = [", b'aliases = ["another name",', 1))
        assert path.read_bytes() != content and checkout.digests() == before
    finally:
        path.write_bytes(content)


def test_what_a_space_declares_for_other_jobs_changes_no_digest(tmp_path) -> None:
    (folder := tmp_path / "search_spaces").mkdir()
    path, plain = folder / "mine.toml", '[parameters.dp]\ndivisors = "devices"\n'
    cp = '[parameters.cp]\nvalues = [1, 2]\non_request = true\n[[constraint]]\nexpression = "cp == 1 or dp == 1"\nwhy = "so"\n'
    path.write_text(f"{plain}[[constraint]]\nexpression = 'dp > 0'\nwhy = 'so'\n")
    before = content_hash(path, words=False)
    path.write_text(f'{plain}words = "--dp {{dp}}"\n{cp}[[constraint]]\nexpression = "dp > 0"\nwhy = "so"\n')
    assert content_hash(path, words=False) == before != content_hash(path)
    assert content_hash(path, words=False, asked={"cp"}) != before


def test_texts_for_readers_change_no_digest(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    digests = []
    for text, median in (("so", 1), ("for another reason", 1), ("so", 2)):
        path.write_text(f'description = "{text}"\n[a]\nmedian = {median}\nsource = "{text}"\n[[constraint]]\nwhy = "{text}"\n')
        digests.append(content_hash(path))
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.slow
def test_another_job_file_joins_no_suite(checkout) -> None:
    before, another = checkout.unchanged, checkout.path(MOE).with_name("another.toml")
    shutil.copy(checkout.path(MOE), another)
    try:
        tasks = checkout.run("-c", "from oppa.bench.tasks import simulated_tasks; print(*(each.name for each in simulated_tasks()))")
        assert checkout.digests() == before and tuple(tasks.split()) == SIMULATED
    finally:
        another.unlink()


MEASURED = """
import json
from oppa import catalog
from oppa.bench.registry import benchmarks
for benchmark in benchmarks().values():
    for recorded in benchmark.recorded:
        folder, inputs = catalog.root() / recorded.folder, recorded.inputs()
        if not any((folder / name).exists() for name in ("README.md", "table.md", "reference.json")):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "README.md").write_text("# A record\\n\\n- date: now\\n")
        if recorded.plays:
            protocol = {**inputs.arguments, "apart": []}
            lines = [json.dumps({"protocol": {**protocol, "tasks": list(inputs.tasks), "files": inputs.files}, "origin": {}})]
            tasks = inputs.tasks or ["1B-1"]
            for plays in recorded.plays:
                every = [(task, name, seed) for task in tasks for name in plays.designers for seed in range(plays.seeds)]
                lines += [json.dumps({"task": task, "designer": name, "seed": seed, "variation": ""}) for task, name, seed in every]
            (folder / "runs.jsonl").write_text("".join(line + "\\n" for line in lines))
        elif (folder / "reference.json").exists():
            (folder / "reference.json").write_text(json.dumps({"origin": {"date": "now"}, "inputs": inputs.to_dict(), "scores": []}))
        else:
            (folder / "inputs.json").write_text(inputs.text)
"""


@pytest.mark.slow
def test_records_match_until_an_input_changes_and_say_which(tmp_path) -> None:
    checkout = Checkout(tmp_path)
    checkout.run("-c", MEASURED)
    assert checkout.states(code=0) == {}
    with checkout.path(MOE).open("a") as file:
        file.write("\nadded = 1\n")
    assert checkout.states(code=4) == dict.fromkeys(SIMULATED_RECORDS | TRANSFER, ("stale", [MOE]))


@pytest.mark.slow
def test_data_that_are_not_here_leave_it_open_and_a_play_that_lacks_does_not(tmp_path) -> None:
    checkout = Checkout(tmp_path)
    checkout.run("-c", MEASURED)
    checkout.path("OPPA_DATA/nanotron_h100.csv").unlink()
    listed = json.loads(checkout.run("-m", "oppa", "bench", "--json"))
    open_ = {each["record"] for each in listed if each["state"] == "not checked"}
    recorded = ("bench", "prior", "calibrate", "simulator", "search/replay", "cluster", "transfer", "proxy")
    assert open_ == {f"results/{name}" for name in recorded} | together("replay", "adversarial")
    log = checkout.folder / "results" / "search" / "cpu" / "runs.jsonl"
    log.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if '"designer": "tpe", "seed": 7' not in line))
    shutil.rmtree(checkout.folder / "results" / "service")
    assert checkout.states(code=4) == {
        "results/search/cpu": ("stale", ["1 runs of tpe are missing"]),
        "results/service": ("no record", ["run `oppa bench service --out results/service`"]),
    }
