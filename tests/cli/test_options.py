"""Every command has few options; variables and `--set` can set them, and no trial sees them."""

import json
import logging
import re
from collections.abc import Iterator

import pytest
import typer

from oppa import catalog
from oppa.cli import app
from oppa.cli.environment import RESERVED, variable
from oppa.cli.job_options import verbose_first
from oppa.cli.logs import show_logs
from oppa.errors import InputError
from oppa.problem.settings import parse_settings
from oppa.trials import environments, placement
from oppa.trials.runner import load_runner
from tests.command_line import commands_below

JOB = catalog.root() / "runners" / "simulated" / "jobs" / "bert.toml"
MOST = 8
"""Options of a command, without its help and SHORT."""
SHORT = {"--model", "--advise", "--launcher", "--trials"}
"""Options that are short for a key of the job file, which `--set` reaches, too."""


def commands(command=None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list]]:
    """Every command, with its options."""
    command = command or typer.main.get_command(app)
    options = [each for each in command.params if each.param_type_name == "option" and "--help" not in each.opts]
    yield path, options
    for name, below in commands_below(command).items():
        yield from commands(below, (*path, name))


def arguments_of_commands(command=None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list]]:
    """Every command, with its arguments."""
    command = command or typer.main.get_command(app)
    yield path, [each for each in command.params if each.param_type_name == "argument"]
    for name, below in commands_below(command).items():
        yield from arguments_of_commands(below, (*path, name))


def test_no_command_has_many_options() -> None:
    own = {" ".join(path): [each.opts for each in options if not SHORT.intersection(each.opts)] for path, options in commands()}
    assert not {path: options for path, options in own.items() if len(options) > MOST}


def test_every_option_has_a_variable_of_its_own_and_none_is_a_tag() -> None:
    names = [variable(path, max(each.opts, key=len)) for path, options in commands() for each in options if path]
    assert len(names) == len(set(names))
    assert {name for name in names if name in RESERVED} == {"OPPA_CONTROL_TOKEN"}  # which a run reads, and no option
    assert not {"OPPA_STUDY", "OPPA_TUNER", "OPPA_TRIAL"} & set(names)
    assert not environments.INHERITED & set(names)
    assert variable(("train-policy",), "--out") == "OPPA_TRAIN_POLICY_OUT"
    assert variable(("cluster", "run"), "--check-s") == "OPPA_CLUSTER_RUN_CHECK_S"


def test_no_help_loses_the_name_of_a_table_as_if_it_were_markup() -> None:
    """Rich takes `[cluster]` for a tag that it does not know, and prints nothing in its place."""
    texts = [option.help or "" for _, options in commands() for option in options]
    texts += [below.help or "" for below in commands_below(typer.main.get_command(app)).values()]
    assert len(texts) > 50
    assert not [text for text in texts if re.search(r"(?<!\\)\[[a-z_.]+\]", text)]


def test_a_variable_sets_an_option_and_a_tag_does_not(oppa, monkeypatch) -> None:
    for name, value in {"TUNE_TRIALS": "2", "TUNE_DESIGNER": "random", "TUNE_STUDY": "s", "TUNE_JSON": "1", "STUDY": "not-this"}.items():
        monkeypatch.setenv(f"OPPA_{name}", value)
    found = json.loads(oppa("tune", JOB).stdout)
    assert len(found["trials"]) == 2 and found["study"] == "s"
    assert len(json.loads(oppa("tune", JOB, "--trials", "3").stdout)["trials"]) == 3
    monkeypatch.setenv("OPPA_CLUSTER_STATUS_JSON", "1")
    (oppa.folder / "spool").mkdir()
    assert json.loads(oppa("cluster", "status", "spool").stdout) == {"jobs": []}


@pytest.mark.parametrize(
    ("name", "command", "hint"),
    [
        ("OPPA_TUNE_TRAILS", ("tune", "job.toml"), "did you mean `OPPA_TUNE_TRIALS`?"),
        ("OPPA_TUNE_PARALLEL", ("tune", "job.toml"), "unset it, and use `--set launcher.parallel=3`"),
        ("OPPA_CLUSTER_RUN_MAX_SCALE", ("cluster", "run", "spool"), "unset it, and use `--set scaling.max_scale=3`"),
    ],
)
def test_a_variable_that_sets_no_option_is_refused(oppa, monkeypatch, name, command, hint) -> None:
    monkeypatch.setenv(name, "3")
    said = oppa(*command, code=2).stderr
    assert f"the environment variable `{name}` sets no option of `oppa {command[0]}" in said and f"hint: {hint}" in said
    assert "sets no option" not in oppa("space", "job.toml").stderr, "it belongs to no option of another command"


@pytest.mark.parametrize(("name", "value"), [("OPPA_TRAIN_POLICY_SEED", "3"), ("OPPA_TRAIN_TABEL", ""), ("OPPA_TRAINER", "mine")])
def test_variables_of_other_commands_and_programs_are_left_alone(oppa, monkeypatch, name, value) -> None:
    monkeypatch.setenv(name, value)
    assert "`nowhere` cannot be read" in oppa("train", "nowhere", code=2).stderr


def test_a_bad_value_names_the_variable_that_has_it(oppa, monkeypatch) -> None:
    monkeypatch.setenv("OPPA_TUNE_TRIALS", "many")
    assert "`--trials` is not a whole number" in (said := oppa("tune", "job.toml", code=2).stderr)
    assert "(`OPPA_TUNE_TRIALS=many` in the environment)" in said


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("tune", "--trails", 3), "`oppa tune` has no option `--trails`", "did you mean `--trials`? `oppa tune --help` lists"),
        (("tune", "--global-batch", 3), "has no option `--global-batch`", "use `--set batch.global_batch=3`; `oppa tune --help`"),
        (("tune", "--layers=3"), "has no option `--layers`", "use `--set model.layers=3`"),
        (("show", "s", "--global-batch=3"), "`oppa show` has no option `--global-batch`", "`oppa show --help` lists"),
        (("tunes",), "no such command `tunes`", "did you mean `tune`? `oppa --help` lists"),
        (("bench", "goodputt"), "no such command `goodputt`", "did you mean `goodput`"),
        (("cluster", "run"), "missing argument `SPOOL`", "`oppa cluster run --help` lists"),
        (("tune", "job.toml", "--study"), "option `--study` requires an argument", "`--help` after the command lists"),
        (("tune", "job.toml", "--trials", "many"), "`--trials many` is not a whole number", "`oppa tune --help` lists"),
    ],
)
def test_wrong_words_are_errors_as_all_others(oppa, words, message, hint) -> None:
    done = oppa(*words, code=2)
    lines = done.stderr.splitlines()
    assert lines[0].startswith("error: ") and message in lines[0] and lines[2].startswith("hint: ") and hint in lines[2]
    assert len(lines) == 3 and not done.stdout


def test_a_command_without_its_subcommand_prints_its_help(oppa) -> None:
    done = oppa("cluster", code=2)
    assert "Usage: oppa cluster" in done.stdout + done.stderr and "error:" not in done.stderr


def test_no_help_has_brackets_within_brackets() -> None:
    shown = {path: [str(each.metavar) for each in arguments] for path, arguments in arguments_of_commands() if arguments}
    assert len(shown) > 15 and not {path: names for path, names in shown.items() if any("[" in name for name in names)}


def test_a_token_of_a_service_is_no_option(oppa, monkeypatch) -> None:
    monkeypatch.setenv("OPPA_CONTROL_TOKEN", "my-job")
    assert "nowhere" in oppa("control", "--table", "nowhere", code=2).stderr


def test_no_variable_of_an_option_reaches_a_trial(monkeypatch, tmp_path) -> None:
    options = [variable(path, max(each.opts, key=len)) for path, options in commands() for each in options]
    for name in (*options, "OPPA_VERBOSE", "OPPA_SLOT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("MY_VARIABLE", "kept")
    seen = placement.environment(load_runner(catalog.find("runners", "torch")), "a-study", packages=tmp_path)
    assert {name for name in seen if name.startswith("OPPA_")} <= {"OPPA_STUDY", "OPPA_TUNER", *environments.INHERITED}
    assert seen["OPPA_STUDY"] == "a-study" and seen["MY_VARIABLE"] == "kept"


@pytest.mark.parametrize(
    ("word", "tables"),
    [
        ("limits.trials=20", {"limits": {"trials": 20}}),
        ("launcher.options.partition=gpu", {"launcher": {"options": {"partition": "gpu"}}}),
        ("limits.wall_time=10 min", {"limits": {"wall_time": "10 min"}}),
        ("space.parameters.dp=[1, 2]", {"space": {"parameters": {"dp": [1, 2]}}}),
        ("model.tied=true", {"model": {"tied": True}}),
        ("training.learning_rate=3e-4", {"training": {"learning_rate": 3e-4}}),
        ('name="2"', {"name": "2"}),
        ("command.argv=a=b", {"command": {"argv": "a=b"}}),
        ("launcher.options.time=1:30:00", {"launcher": {"options": {"time": "1:30:00"}}}),
        ("launcher.options.begin=2026-01-01", {"launcher": {"options": {"begin": "2026-01-01"}}}),
        ("name=1\n[limits]\ntrials=2", {"name": "1\n[limits]\ntrials=2"}),
    ],
)
def test_a_setting_is_toml_or_else_a_text(word, tables) -> None:
    assert parse_settings([word]) == tables


@pytest.mark.parametrize("word", ["limits", "=3", "limits..trials=3", "[limits]\ntrials=3"])
def test_what_is_no_setting_is_an_error(word) -> None:
    with pytest.raises(InputError, match="is not of the form"):
        parse_settings([word])


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("--set", "limits.trails=3"), "`--set limits.trails=3`: `[limits]` has no key `trails`", "`trials`"),
        (("--set", "limit.trials=3"), "`--set limit.trials=3`: the key `limit` is unknown", "`limits`"),
        (("--set", "trials=3"), "the key `trials` is unknown", "did you mean `limits.trials`?"),
        (("--set", "limits.wall_time=5"), "`wall_time = 5`: it has no unit", '`"90 s"`'),
        (("--set", "limits.trials=many"), '`trials = "many"` is not a whole number', "digits"),
        (("--set", "limits=3"), "`--set limits=3`: `limits = 3` is not a table", "keys"),
        (("--set", "name=job", "--set", "name.x=3"), "`name` is not a table", "set `name` itself"),
    ],
)
def test_a_wrong_setting_is_named_with_the_nearest_key(oppa, words, message, hint) -> None:
    said = oppa("space", "job.toml", *words, code=2).stderr
    assert message in said and hint in said.partition("hint")[2]


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (
            ("job.toml", "limits.trials=3"),
            "`limits.trials=3` is no argument of `oppa tune`",
            "`--set limits.trials=3`; a launch line follows",
        ),
        (("job.toml", "--dry-run", "true"), "`true` is no argument of `oppa tune`", "remove it; a launch line follows `--`"),
        (("sh", "train.sh"), "`sh` is no job file", "`oppa tune -- sh train.sh`"),
        (("job.toml", "--trials", "0"), "`--trials 0` is too small", "use at least 1"),
        (("job.toml", "--trials", "-1"), "`--trials -1` is too small", "use at least 1"),
        (("job.toml", "--trials", "3.5"), "`--trials 3.5` is not a whole number", "write digits"),
        (("job.toml", "--max-gpu-hours", "1h"), "`--max-gpu-hours 1h` is not a number", "such as 1.5"),
    ],
)
def test_a_stray_word_and_a_wrong_number_are_named(oppa, words, message, hint) -> None:
    said = oppa("tune", *words, code=2).stderr
    assert message in said and hint in said.partition("hint")[2] and not (oppa.folder / "studies").exists()


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("train", "job.toml", "dp=2", "x"), "`x` is no argument of `oppa train`", "remove it"),
        (("train", "job.toml", "dp=2", "micro_batch=4"), "`micro_batch=4` is no argument", "by commas: `dp=2,micro_batch=4`"),
        (("explain", "sh", "a.sh", "b"), "`sh` is no job file", "`oppa explain -- sh a.sh b`"),
    ],
)
def test_a_word_after_a_configuration_is_named(oppa, words, message, hint) -> None:
    said = oppa(*words, code=2).stderr
    assert message in said and hint in said.partition("hint")[2]


def test_a_setting_reaches_the_job_before_it_is_checked(oppa) -> None:
    job = oppa.folder / "job.toml"
    job.write_text(job.read_text().replace("global_batch = 16", "global_batch = -1"))
    assert "global_batch" in oppa("space", "job.toml", code=2).stderr
    narrow = ("--set", "batch.global_batch=16", "--set", "space.parameters={dp=2,tp=1,pp=1}")
    found = [json.loads(line) for line in oppa("space", "job.toml", *narrow, "--json").stdout.splitlines()]
    assert found and {each["dp"] for each in found} == {2} and {each["global_batch"] for each in found} == {16}


def test_a_dry_run_starts_nothing(oppa) -> None:
    said = json.loads(oppa("tune", JOB, "--dry-run", "--json", "--designer", "random", "--set", "limits.trials=7").stdout)
    assert said["limits"]["trials"] == 7 and said["configurations"] == 3426 and said["first"]["global_batch"] == 256
    assert said["first"]["dp"] and not (oppa.folder / "studies").exists()
    assert "7 trials" in oppa("tune", JOB, "--dry-run", "--designer", "random", "--trials", 7).stdout


def test_verbose_may_follow_the_command_but_not_the_launch_line() -> None:
    assert verbose_first(["tune", "job.toml", "-v", "--seed", "1", "-vv"]) == ["-v", "-vv", "tune", "job.toml", "--seed", "1"]
    assert verbose_first(["tune", "--", "train", "-v"]) == ["tune", "--", "train", "-v"]


@pytest.mark.slow
def test_verbose_logs_to_stderr(oppa) -> None:
    tune = ("tune", JOB, "--designer", "random", "--trials", "1")
    quiet, one, two = oppa(*tune, "--study", "a"), oppa("-v", *tune, "--study", "b", "--json"), oppa("-vv", *tune, "--study", "c")
    assert "info:" not in quiet.stderr
    assert "info: study b of bert" in one.stderr and "info: trial 1" in one.stderr and "debug:" not in one.stderr
    assert "debug: facts" in two.stderr and json.loads(one.stdout)["study"] == "b"
    assert "info: study d of bert" in oppa(*tune, "-v", "--study", "d").stderr
    show_logs(0)
    assert logging.getLogger("oppa").level == logging.WARNING


def test_completion_stays(oppa) -> None:
    assert "--install-completion" in oppa("--help").stdout


def test_a_policy_that_only_shares_batches_has_no_plan(oppa) -> None:
    done = oppa("plan", "--table", "t", "--noise", "r", "--policy", "proportional", code=2)
    assert "`--policy proportional` has no stages to plan" in done.stderr and "hint: use `goodput`" in done.stderr


def test_the_example_of_a_start_up_time_is_a_time_of_a_start(oppa) -> None:
    done = oppa("cluster", "simulate", "trace.csv", "--gpus", 8, "--set", "elastic.start=5", code=2)
    assert '"60 s"' in done.stderr and "3 us" not in done.stderr
