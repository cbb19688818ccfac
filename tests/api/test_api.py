"""The Python interface as a user has it: from a program on standard input, from `python -c`, and in a session of its own."""

import ast
import functools
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import typing
from pathlib import Path

import pandas as pd
import pytest

import oppa
from oppa import catalog
from oppa.api.torch_threads import torch_threads_kept
from oppa.cost.prediction import COLUMNS
from oppa.errors import InfeasibleError, InputError, JobError, OppaError
from oppa.study import Study
from oppa.tuning.session import Session
from tests import own_program

JOB = catalog.root() / "runners" / "simulated" / "jobs" / "bert.toml"
EXAMPLE = catalog.root() / "examples" / "cpu.toml"
NOTEBOOK = """\
import oppa
job = oppa.load_job({job!r}, settings=["limits.repeats=3"])
result = oppa.tune(job, trials={trials}, designer="random", study="s")
print(result.best.configuration.id)
print(result.best.steps_per_s, result.default.steps_per_s)
print(len(result.trials), result.speed_up.ratio.value if result.speed_up else 1.0)
"""
BUSY_DEVICES = """\
import contextlib, oppa
from oppa.trials.device_lock import exclusive
command = ["python3", "program.py", "{micro_batch}", "{steps}"]
job = oppa.load_job("job.toml", settings=["limits.trials=1"], command=command)
devices, ticks = contextlib.ExitStack(), []
devices.enter_context(exclusive(job.cluster, lambda: None))
class Releasing(oppa.SearchCallback):
    def started(self, lease): pass
    def stepped(self, measurement): pass
    def ended(self, lease, result): pass
    def tick(self):
        ticks.append(len(ticks))
        if len(ticks) == 5:
            devices.close()
found = oppa.tune(job, study="s", designer="random", callback=Releasing())
print(len(found.trials), len(ticks) > 5)
"""


def ran(program: str, folder: Path, *, by_stdin: bool) -> list[str]:
    words = [sys.executable, "-"] if by_stdin else [sys.executable, "-c", program]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, input=program if by_stdin else "", cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.splitlines()


def test_importing_it_loads_nothing() -> None:
    code = "import oppa, sys; print([name for name in ('torch', 'pandas', 'numpy', 'pydantic', 'botorch') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("by_stdin", [True, False], ids=["stdin", "-c"])
def test_six_lines_tune_a_job_and_print_nothing_else(by_stdin, tmp_path) -> None:
    said = ran(NOTEBOOK.format(job=str(JOB), trials=3), tmp_path, by_stdin=by_stdin)
    with Study(tmp_path / "s") as study:
        assert said[0] in {trial.configuration.id for trial in study.trials()}
        assert study.sessions()[0]["command"] == "`python oppa.tune`"
    fastest, default = map(float, said[1].split())
    assert len(said) == 3 and fastest >= default and said[2].split()[0] == "3"


@pytest.mark.slow
def test_real_trials_need_no_main_guard(tmp_path) -> None:
    job, quick = oppa.load_job(EXAMPLE), EXAMPLE.read_text()
    changes = {"devices_per_host = 4": "devices_per_host = 2", "52 MiB": "1 GiB", "tiny-4m": "tiny-1m", "cpus_per_device = 0.5": ""}
    changes |= {"[1, 2, 4, 8]": "4", "[0, 1, 2, 3]": "0", '["gpipe", "1f1b", "interleaved"]': '"1f1b"', "[1, 2]": "1\ntp = 1\npp = 1"}
    for before, after in {**changes, "q_max = 12": "q_min = 2\nq_max = 3", '"40 s"': '"120 s"'}.items():
        quick = quick.replace(before, after)
    (tmp_path / "job.toml").write_text(quick)  # of one configuration, which is compared with nothing
    said = ran(NOTEBOOK.format(job="job.toml", trials=1), tmp_path, by_stdin=True)
    assert job.cluster.devices == 4 and said[2].split()[0] == "1"


@pytest.mark.slow
def test_nothing_is_printed_while_another_tuner_holds_the_devices(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "job.toml").write_text(own_program.JOB)
    (tmp_path / "program.py").write_text(own_program.PROGRAM)
    assert ran(BUSY_DEVICES, tmp_path, by_stdin=True) == ["1 True"]


def test_the_result_is_that_of_the_command(tmp_path) -> None:
    found = oppa.tune(JOB, study=tmp_path / "s", trials=3, designer="random")
    values = json.loads(json.dumps(found.to_dict()))
    assert values["best"] == found.best.to_dict() and values["default"] == (found.default and found.default.to_dict())
    assert values["baseline"] is None is found.baseline and len(values["trials"]) == len(found.trials) == 3
    assert values["gain"] == (found.speed_up.ratio.value if found.speed_up else 1.0)
    assert found.exported.folder == tmp_path / "s" / "best"


def test_a_study_goes_on_with_a_larger_budget(tmp_path) -> None:
    first = oppa.tune(str(JOB), study=str(tmp_path / "s"), trials=2, designer="random")
    more = oppa.tune(oppa.load_job(JOB), study=first.study, trials=4, designer="random")
    assert more.trials[:2] == first.trials and len(more.trials) == 4


class Counting:
    """Counts events, and asks to stop when a trial begins."""

    def __init__(self, stop_at: int = 0) -> None:
        self.began, self.steps, self.done, self.stop_at = 0, 0, 0, stop_at

    def started(self, lease) -> None:
        self.began += 1
        if self.began == self.stop_at:
            os.kill(os.getpid(), signal.SIGINT)

    def stepped(self, measurement) -> None:
        self.steps += 1

    def ended(self, lease, result) -> None:
        self.done += 1

    def tick(self) -> None:
        pass


def test_a_callback_watches(tmp_path) -> None:
    watcher = Counting()
    found = oppa.tune(JOB, study=tmp_path / "s", trials=2, designer="random", callback=watcher)
    assert watcher.began == watcher.done >= len(found.trials) + len(found.values["verification"]) and watcher.steps > watcher.done


@pytest.fixture
def interruptible():
    """Python's own handler of Ctrl-C, also if the tests run in the background, where a shell ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_between_events_and_the_study_goes_on(tmp_path, interruptible) -> None:
    with pytest.raises(KeyboardInterrupt):
        oppa.tune(JOB, study=tmp_path / "s", trials=3, designer="random", callback=Counting(stop_at=2))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with Study(tmp_path / "s") as study:
        assert [trial.outcome for trial in study.trials()][1:] == ["interrupted"] and not study.running()
    assert len(oppa.tune(JOB, study=tmp_path / "s", trials=3, designer="random").values["trials"]) >= 3


@pytest.mark.slow
def test_a_callback_may_be_made_for_its_session(tmp_path) -> None:
    import contextlib

    seen = list[Session]()

    @contextlib.contextmanager
    def made(session: Session):
        seen.append(session)
        yield Counting()
        seen.append(session)

    found = oppa.profile(JOB, global_batch=[64, 128], table=tmp_path / "t", trials=2, callback=made)
    assert len(seen) == 2 and seen[0].profiler is not None and len(seen[0].candidates) == found.table.origin.candidates
    assert [row.configuration.global_batch for row in found.fastest] == found.table.batches
    assert oppa.Table.read(tmp_path / "t").rows == found.table.rows and found.to_dict()["trials"] == 2


def test_predictions_are_ranked() -> None:
    found = oppa.predict(JOB)
    assert len(found) == len(found.problem.candidates()) and found[0].fits
    assert found[0].steps_per_s >= found[1].steps_per_s > 0 and found[0].memory_bytes > 0
    low, high = found[0].step_time_interval_s
    assert low < found[0].step_time_s < high and 0.5 <= found[0].probability_fits <= 1
    low, high = found[0].memory_interval_bytes
    assert low < found[0].memory_bytes < high


ROW = {"layers": 24, "hidden": 2048, "heads": 16, "kv_heads": 16, "ffn": 5504, "vocab": 32000, "seq_len": 2048, "device": "H100", "gpus": 8}
ROW |= {"gpus_per_node": 8, "gbs": 256, "mbs": 2, "dp": 8, "tp": 1, "pp": 1, "model_chunks": 1, "zero": 1, "recompute": "none"}


def test_rows_of_numbers_are_predicted_as_those_of_a_file() -> None:
    rows = pd.DataFrame(
        [{**ROW, "note": "kept"}, {**ROW, "device": "A100-80GB", "note": ""}, {**ROW, "gbs": 255, "note": "cannot run"}], index=[7, 3, 5]
    )
    found = oppa.predict_rows(rows)
    assert found.index.tolist() == [7, 3, 5] and found["note"].tolist() == ["kept", "", "cannot run"]
    assert found["predicted_step_time_s"][7] < found["predicted_step_time_s"][3] and found["fits"].isna().tolist() == [False, False, True]
    pd.testing.assert_frame_equal(oppa.predict_rows(rows.astype(str))[[*COLUMNS]], found[[*COLUMNS]])
    with pytest.raises(oppa.OppaError, match="`hidden`"):
        oppa.predict_rows(rows.drop(columns="hidden"))


@pytest.mark.slow
def test_a_job_is_trained_and_goes_on(tmp_path) -> None:
    job = '[model]\npreset = "tiny-1m"\nlayers = 2\nseq_len = 32\n[batch]\nglobal_batch = 8\n[cluster]\ndevices_per_host = 2\n'
    (tmp_path / "job.toml").write_text(job + 'memory_limit = "1 GiB"\n')
    first = oppa.train(tmp_path / "job.toml", run=tmp_path / "r", settings=["train.samples=24"])
    more = oppa.train(tmp_path / "job.toml", "pp=2,micro_batch=2", run=tmp_path / "r", settings=["train.samples=40"])
    assert first.finished and more.finished
    assert (first.to_dict()["samples"], more.to_dict()["samples"]) == (24, 40)
    assert more.to_dict()["configuration"].startswith("dp1_tp1_pp2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"job": "nowhere.toml"}, "`nowhere.toml` cannot be read"),
        ({"job": JOB, "designer": "vanila-bo"}, "`vanila-bo` is no designer"),
        ({"job": JOB, "trials": 0}, "`trials = 0` is too small"),
        ({"job": JOB, "trials": float("nan")}, "`trials = nan` is no whole number"),
        ({"job": JOB, "trials": 2.5}, "`trials = 2.5` is no whole number"),
        ({"job": JOB, "trials": True}, "`trials = True` is no whole number"),
        ({"job": JOB, "trials": "3"}, "`trials = '3'` is no whole number"),
        ({"job": JOB, "max_gpu_hours": "1"}, "`max_gpu_hours = '1'` is not a positive number"),
        ({"job": JOB, "seed": "a"}, "`seed = 'a'` is no whole number"),
    ],
)
def test_bad_arguments_are_errors_and_leave_nothing_behind(arguments, message, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        oppa.tune(**arguments)
    assert not any(tmp_path.iterdir())


def test_a_plan_refuses_the_seed_that_the_search_refuses() -> None:
    with pytest.raises(InputError, match="`seed = -1` is too small"):
        oppa.plan(JOB, seed=-1)


def test_studies_that_do_not_exist_leave_no_folder_behind(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OppaError, match="nowhere"):
        oppa.tune(oppa.load_job(JOB, settings=["designer.transfer=nowhere"]))
    assert not any(tmp_path.iterdir())


def test_a_plan_refuses_to_start_from_its_own_study_as_the_search_does(tmp_path) -> None:
    folder = tmp_path / "s"
    job = oppa.load_job(JOB, settings=[f"designer.transfer={folder}"])
    Study.create(folder, job.to_dict(), job.fingerprint).close()
    for start in (oppa.plan, oppa.tune):
        with pytest.raises(InputError, match="names no study but the search's own"):
            start(job, study=folder)


@pytest.mark.parametrize(("batches", "message"), [([], "`global_batch` names no batch"), ([0, 8], "`global_batch = 0` is too small")])
def test_batches_of_a_profile_are_checked(batches, message, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        oppa.profile(JOB, global_batch=batches)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("measure", [oppa.tune, functools.partial(oppa.profile, global_batch=[8])], ids=["tune", "profile"])
def test_parallel_trials_are_refused_where_nothing_starts_them(measure, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"`parallel = 2` in \[launcher\] needs further tuners") as raised:
        measure(oppa.load_job(EXAMPLE, settings=["launcher.parallel=2"]))
    assert "`launcher.parallel` to 1" in (raised.value.hint or "") and not any(tmp_path.iterdir())


def test_plans_start_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert oppa.plan(JOB, designer="random", trials=2).to_dict()["limits"]["trials"] == 2 and not any(tmp_path.iterdir())
    study = oppa.tune(JOB, study="s", trials=2, designer="random").study
    before = sorted(tmp_path.rglob("*"))
    assert oppa.plan_verification(study, rounds=4).to_dict()["rounds"] == 4 and sorted(tmp_path.rglob("*")) == before


def test_nothing_feasible_is_an_error_and_the_study_stays(tmp_path) -> None:
    job = oppa.load_job(JOB, settings=["cluster.memory_limit=200 MiB"])
    with pytest.raises(InfeasibleError, match="could run"):
        oppa.tune(job, study=tmp_path / "s", trials=2, designer="random")
    with Study(tmp_path / "s") as study:
        assert len(study.trials()) >= 2


def test_settings_of_a_job_are_checked() -> None:
    with pytest.raises(JobError) as raised:
        oppa.load_job(JOB, settings=["limits.trails=3"])
    assert raised.value.message == "`--set limits.trails=3`: `[limits]` has no key `trails`" and "`trials`" in raised.value.hint


def functions() -> list[typing.Callable[..., object]]:
    """Return the functions of the interface."""
    found = [getattr(oppa, name) for name in oppa.__all__]
    return [each for each in found if inspect.isfunction(each)]


def test_every_function_returns_a_public_type_and_its_hints_are_read() -> None:
    public = [getattr(oppa, name) for name in oppa.__all__]
    returned = {each.__name__: typing.get_type_hints(each)["return"] for each in functions()}
    assert returned["tune"] is oppa.SearchResult and len(returned) == 12
    assert not {name: found for name, found in returned.items() if found not in (*public, pd.DataFrame)}
    assert typing.get_type_hints(oppa.SearchResult.best.fget)["return"] is oppa.Contender


def test_every_public_name_has_an_entry_in_the_reference() -> None:
    page = (catalog.root() / "docs" / "reference" / "api.md").read_text()
    entries = re.findall(r"^\.\. auto(?:function|class|exception|data):: oppa\.(\w+)$", page, re.MULTILINE)
    assert sorted(entries) == sorted(oppa.__all__)


def test_every_name_is_there_typed_and_documented() -> None:
    assert set(oppa.__all__) <= set(dir(oppa)) and (Path(oppa.__file__).parent / "py.typed").is_file()
    declared = ast.parse(Path(oppa.__file__).read_text())
    typed = {alias.name for node in ast.walk(declared) if isinstance(node, ast.ImportFrom) and node.module for alias in node.names}
    assert set(oppa.__all__) <= typed
    for name in oppa.__all__:
        assert inspect.getdoc(getattr(oppa, name)), name
    for function in functions():
        hints = [each.annotation for each in inspect.signature(function).parameters.values()]
        assert inspect.Parameter.empty not in hints and inspect.signature(function).return_annotation is not None
    with pytest.raises(AttributeError, match=r"no attribute 'tunes'"):
        typing.cast(typing.Any, oppa).tunes  # noqa: B018


def test_the_torch_of_the_caller_keeps_its_threads():
    torch = pytest.importorskip("torch")
    from oppa.tuning.surrogate.threads import use_one_thread

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with torch_threads_kept():
            use_one_thread()  # as surrogates do
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (lambda: oppa.load_line("python train.py"), "a launch line is a list of words, not the text `python train.py`", "shlex.split"),
        (lambda: oppa.load_job(EXAMPLE, command="python {micro_batch}"), "not the text `python {micro_batch}`", "oppa.load_job"),
        (lambda: oppa.train(EXAMPLE, command="python train.py"), "a launch line is a list of words", "shlex.split"),
        (lambda: oppa.tune(["python", "train.py"]), "an object of type `list` is no job", "oppa.load_line"),
        (lambda: oppa.predict({"layers": 4}), "an object of type `dict` is no job", "the path of a job file"),
    ],
)
def test_what_is_no_job_is_refused_with_what_to_give(call, message, hint) -> None:
    with pytest.raises(InputError, match=message) as refused:
        call()
    assert hint in refused.value.hint
