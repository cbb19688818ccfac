"""A parameter is one TOML entry: a degree, a knob of the user's own, an environment variable, or choices in the launch line."""

import dataclasses
import functools
import json

import pytest

from oppa.errors import InputError, JobError
from oppa.problem.configuration import Configuration, ExtraValue
from oppa.problem.encoding import column_names, encode
from oppa.problem.job import load_job
from oppa.problem.problem import Problem
from oppa.problem.selector import find
from oppa.table import rows as table_rows
from oppa.table.rows import TableRow
from oppa.trials.trial_folder import TrialSpec
from tests.problem import own_space
from tests.problem.own_space import launched

LAUNCH = ["train", "--workers", "{workers=4:2,4,8}", "--fused={fused=false:false,true}", "--mbs", "{micro_batch=2:1,2,4}"]


@pytest.fixture
def load(tmp_path):
    return functools.partial(own_space.load, tmp_path)


@pytest.fixture
def program(tmp_path):
    """A job that states no model."""

    def write_and_load(argv=LAUNCH, more=""):
        (tmp_path / "job.toml").write_text("[cluster]\ndevices_per_host = 2\n[batch]\nglobal_batch = 8\n" + more)
        return load_job(tmp_path / "job.toml", argv=argv)

    return write_and_load


@pytest.mark.parametrize("base", ["megatron", "command"])
def test_one_entry_declares_a_degree(base, load) -> None:
    """`megatron` has a `cp` of its own, which the entry replaces; `command` has none."""
    problem = load(own_space.CP.replace("megatron", base))
    every = list(problem.candidates())
    assert {each["cp"] for each in every} == {1, 2, 4}
    assert all(each.dp * each.tp * each.pp * each["cp"] == each.devices == 4 for each in every)
    assert "cp" in column_names(problem.candidates())
    assert {launched(problem, each).partition("--context-parallel-size ")[2] for each in every} == {"1", "2", "4"}
    chosen = next(each for each in every if each["cp"] == 2 and each.micro_batch == 2 and each.dp == 2)
    assert "dp2_mbs2_cp2" in chosen.id


def test_a_knob_goes_through_json_tables_trials_and_ids_unchanged(load, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    problem = load(own_space.CP + '[parameters.algo]\nvalues = ["Ring", "Tree"]\nenv = "NCCL_ALGO"\nshort = "na"\n')
    candidates = problem.candidates()
    for configuration in candidates:
        stored = json.loads(json.dumps(configuration.to_dict()))
        assert Configuration.checked(stored) == Configuration.from_dict(stored) == configuration
        row = TableRow(configuration=configuration, steps_per_s=2.0, log_stddev=0.1, memory_bytes=None, source="predicted")
        facts = table_rows.described([row])
        assert TableRow.from_csv(dict(zip(table_rows.columns(facts), row.to_csv(facts), strict=True)), facts) == row
        TrialSpec.of(problem, configuration, study="s", trial=1, steps=3).write(tmp_path / configuration.id)
        spec = TrialSpec.read(tmp_path / configuration.id)
        variables = {**problem.default_variables(configuration), "NCCL_ALGO": configuration["algo"]}
        assert spec.configuration == configuration and spec.environment == variables
        setting, found = find(configuration.id, candidates)
        assert [candidates.configuration(int(index)) for index in found] == [configuration]
        assert setting["algo"] == configuration["algo"] and f"_na{configuration['algo']}" in configuration.id
    assert len({configuration.id for configuration in candidates}) == len(candidates)
    assert Problem.from_dict(json.loads(json.dumps(problem.to_dict()))) == problem


def test_a_condition_applies_to_knobs_and_an_inactive_one_has_no_words(load) -> None:
    problem = load(own_space.CP + '[parameters.ring]\nvalues = [1, 2]\nwhen = "cp > 1"\nwords = ["--ring", "{ring}"]\n')
    for each in problem.candidates():
        assert ("--ring" in launched(problem, each)) == (each["cp"] > 1) and (each["cp"] > 1 or each["ring"] == 1)


def test_a_knob_of_ones_own_leaves_the_words_of_the_space(load) -> None:
    problem = load(argv=["torchrun", "pretrain_gpt.py", "{mine=1:1,2}"])
    assert {(each.tp, each["mine"]) for each in problem.candidates()} == {(tp, mine) for tp in (1, 2, 4) for mine in (1, 2)}
    lines = {launched(problem, each) for each in problem.candidates()}
    assert all("--tensor-model-parallel-size" in line and "--micro-batch-size" in line for line in lines)


def test_words_may_differ_by_value(load) -> None:
    problem = load(own_space.CP + '[parameters.graphs]\nvalues = [false, true]\nwords = {true = ["--cuda-graphs"]}\n')
    assert all(("--cuda-graphs" in launched(problem, each)) == each["graphs"] for each in problem.candidates())


def test_a_value_that_is_open_has_words_too(load, tmp_path) -> None:
    words = 'words = {a = [], b = ["--engine=b"]}'
    assert {
        each.get("engine", "a")
        for each in load(own_space.CP + f'[parameters.engine]\nvalues = ["a"]\nopen = ["b"]\n{words}\n').candidates()
    } == {"a"}
    asked = load_job(tmp_path / "job.toml", settings=['space.parameters.engine=["a", "b"]'])
    assert all(("--engine=b" in launched(asked, each)) == (each["engine"] == "b") for each in asked.candidates())


def test_words_of_the_launch_line_take_precedence(load) -> None:
    problem = load(argv=["train", "--cp={cp}"])
    lines = {launched(problem, each) for each in problem.candidates()}
    assert lines == {"train --cp=1", "train --cp=2", "train --cp=4"}


def test_what_changes_the_learning_varies_only_if_the_job_says_so(load, tmp_path) -> None:
    space = own_space.CP + '[parameters.recipe]\nvalues = ["bf16", "fp8"]\nchanges = "learning"\nwords = ["--recipe", "{recipe}"]\n'
    assert load(space).space.settled["recipe"] == "bf16"
    asked = load_job(tmp_path / "job.toml", settings=['space.parameters.recipe=["bf16", "fp8"]'])
    assert {each["recipe"] for each in asked.candidates()} == {"bf16", "fp8"}


def test_a_launch_line_states_choices_and_present_values(program) -> None:
    problem = program()
    assert problem.stated_model is None and problem.space.name == "program" and problem.global_batch == 8
    assert {(each["workers"], each["fused"]) for each in problem.candidates()} == {(w, f) for w in (2, 4, 8) for f in (False, True)}
    assert (problem.baseline["workers"], problem.baseline["fused"]) == (4, False)
    assert problem.command.argv == ("train", "--workers", "{workers}", "--fused={fused}", "--mbs", "{micro_batch}")
    assert launched(problem, problem.baseline) == "train --workers 4 --fused=false --mbs 2"


def test_values_keep_their_text(program) -> None:
    problem = program(["train", "{a=007:007,8}", "{b=0.5:0.25,1}", "{c=x:x,y-z}", "{{literal}}"])
    assert {each["a"] for each in problem.candidates()} == {"007", "8"} and {each["b"] for each in problem.candidates()} == {0.25, 0.5, 1.0}
    assert launched(problem, problem.baseline) == "train 007 0.5 x {literal}"
    assert dict.fromkeys(column_names(problem.candidates())) == dict.fromkeys(["a=007", "a=8", "b", "c=x", "c=y-z"])


def test_job_files_declare_knobs_as_search_spaces_do(program) -> None:
    more = '[space.parameters]\nworkers = [2, 4]\n[space.parameters.algo]\nvalues = ["Ring", "Tree"]\nenv = "NCCL_ALGO"\n'
    problem = program(["train", "{workers}"], more)
    assert {(each["workers"], each["algo"]) for each in problem.candidates()} == {(w, a) for w in (2, 4) for a in ("Ring", "Tree")}
    assert problem.variables(problem.candidates().configuration(0)) == {"NCCL_ALGO": "Ring"}


@pytest.mark.parametrize(
    ("values", "scale"),
    [([1, 4], "log2"), ([0, 4], "ordinal"), ([False, True], "ordinal"), (["a", "b"], "one-hot"), ([0.25, 4.0], "log2")],
)
def test_values_imply_the_scale(values, scale, program) -> None:
    problem = program(["train", "{x}"], f"[space.parameters]\nx = {json.dumps(values)}\n")
    assert problem.space["x"].scale == scale and encode(problem.candidates()).min() == 0 and encode(problem.candidates()).max() == 1


@pytest.mark.parametrize(
    ("argv", "more", "message", "hint"),
    [
        (["train", "{workers}"], "", "`{workers}` is not a known placeholder", "{workers=4:2,4,8}"),
        (["train", "{layers}"], "", "names `{layers}`, but the job has no [model]", "[model]"),
        (["train", "{workers=4}"], "", "`{workers=4}` has one value", "`{workers=4:4,...}`, or write `4`"),
        (["train", "{workers=:4,8}"], "", "`{workers=:4,8}` has no choices", "present value"),
        (["train", "{workers:2,4}"], "", "states no present value of `workers`", "{workers=PRESENT:2,4}"),
        (["train", "{micro_batchs}"], "", "`{micro_batchs}` is not a known placeholder", "did you mean `micro_batch`? Or declare"),
        (["train", "{knobs=1:1,2}"], "", "`knobs` has a meaning already", "my_knobs"),
        (["train", "{workers=4:4}"], "", "leaves nothing to choose", "write `4` in its place"),
        (["train", "{workers=4:2,2}"], "", "names a choice twice", "once"),
        (["train", "{workers=4:2,4}", "{workers=4:4,8}"], "", "contradicts", "once"),
        (["train", "{micro batch=4:2,4}"], "", "cannot be the name of a parameter", "write"),
        (["train", "{seed=4:2,4}"], "", "`seed` has a meaning already", "my_seed"),
        (["train", "{devices=4:2,4}"], "", "`devices` has a meaning already", "my_devices"),
        (["train", "{micro_batchs=1:1,2}"], "", "is not a parameter", "did you mean `micro_batch`?"),
        (["train", "{x=1:1,2}"], "[space.parameters]\nx = [1, 2]\n", "has choices in the launch line and in", "remove one"),
        (["train", "{x}"], "[space.parameters]\nx = [1]\n", "`x = 1` leaves nothing to choose", "add a value"),
        (["train", "{x}"], "[space.parameters]\nx = [1, 'a']\n", "the values of `x`", "of one type"),
        (["train", "{x=1:1,2}"], "[space.parameters]\nz = [1, 2]\n", "`[space.parameters]` has no parameter `z`", "x"),
        (["train", "{x=1:1,2}"], "[space.parameters.z]\nvalues = [1, 2]\n", "nothing uses the parameter `z`", "{z}"),
        (
            ["env", "A=2", "python", "t.py", "Z=3"],
            '[space.parameters.z]\nvalues = [1, 2]\nenv = "A"\n',
            "sets `A`, so trials would not get the values of `z`",
            "`default = 2`",
        ),
        (["train", "{x=1:1,2}"], "[space.parameters.z]\nvalues = [1, 2]\nenv = 'RANK'\n", "oppa itself sets `RANK`", "another"),
        (["train", "{x=1:1,2}"], "[objective]\npattern = 'loss'\n", "has no group `value`", "(?P<value>"),
        (["train", "{x=1:1,2}"], "[objective]\npattern = '(?P<value>.) (?P<ms>.)'\n", "has the group `ms`", "(?P<value>"),
        (["train", "{x=1:1,2}"], "[objective]\npattern = '('\n", "is not a regular expression", "(?P<value>"),
    ],
)
def test_what_is_wrong_with_a_knob_is_said(argv, more, message, hint, program) -> None:
    with pytest.raises(InputError) as raised:
        program(argv, more)
    assert message in raised.value.message and hint in raised.value.hint


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('[parameters.cp]\nvalues = ["a", "b"]\ndegree = true\n', "`cp` is a degree with the values"),
        ('[parameters.x]\nvalues = [0, 1]\nscale = "log2"\n', 'has `scale = "log2"` and the values 0, 1'),
        ('[parameters.x]\nvalues = [1, 2]\nshort = "mbs"\n', "is the short name of another parameter"),
        ("[parameters.micro_batch]\nvalues = [1, 2]\ndegree = true\n", "`micro_batch` does not count ranks"),
        ("[parameters.x]\nvalues = [1, 2]\nwords = '--x \"'\n", "cannot be split: No closing quotation"),
        ('[parameters.x]\nvalues = [1, 2]\nwords = "--x {y}"\n', "`{y}` is not a known placeholder"),
        ('[parameters.x]\nvalues = [1, 2]\nwords = {3 = ["--x"]}\n', "has words for `3`, which is no value"),
        ('[parameters."a b"]\nvalues = [1, 2]\n', "cannot be the name of a parameter"),
        ("[parameters.layers]\nvalues = [1, 2]\n", "`layers` has a meaning already"),
        ("[parameters.class]\nvalues = [1, 2]\n", "`class` has a meaning already"),
        ("[parameters.x]\nvalues = [1]\nwords = '--x {x}'\n", "`x = 1` leaves nothing to choose"),
        ('[parameters.x]\nvalues = [1, 2]\nkeys."a.b" = "{y}"\n', "`{y}` is not a known placeholder"),
        ('[parameters.x]\nvalues = [1, 2]\nkeys."a.b" = { 3 = 4 }\n', "has words for `3`, which is no value"),
        ('[parameters.x]\nvalues = [1, 2]\nkeys."a.b" = { 1 = ["c"] }\n', "`a.b` has a list"),
        ("version = 2\n", "the file has `version = 2`, and this oppa reads version 1"),
    ],
)
def test_what_is_wrong_with_an_entry_is_said(entry, message, load) -> None:
    with pytest.raises(InputError) as raised:
        load('extends = "megatron"\n' + entry)
    assert message in raised.value.message and raised.value.hint


def test_degrees_that_cannot_make_up_the_devices_are_said_with_the_law(load) -> None:
    with pytest.raises(JobError) as raised:
        load('extends = "megatron"\n[parameters.cp]\nvalues = [3]\ndegree = true\nwords = "--cp {cp}"\n')
    assert "dp * tp * pp * cp == devices" in raised.value.message
    assert raised.value.hint == "give `cp` a value among 1, 2, 4, or make `devices_per_host` a multiple of 3"


def test_a_job_without_a_model_says_so_where_one_is_needed(program) -> None:
    problem = program()
    with pytest.raises(JobError, match="has no \\[model\\]"):
        _ = problem.model


def test_damaged_knobs_are_no_configuration() -> None:
    plain = Configuration(dp=1, global_batch=1, micro_batch=1, extras=(ExtraValue(name="cp", value=2, degree=True),)).to_dict()
    for change in ({"cp": [1]}, {"cp": 0}, {"cp": "2"}, {"c p": 1}, {"x": float("nan")}, {"x": "a\nb"}, {"knobs": {"cp": {"degree": 3}}}):
        with pytest.raises((TypeError, ValueError)):
            Configuration.checked({**plain, **change})


REQUESTED = (
    own_space.CP.replace("degree = true", "degree = true\non_request = true")
    + """
[parameters.exchange]
values = ["p2p", "a2a"]
when = "cp > 1"
on_request = true
words = "--cp-comm-type {exchange}"
[[constraint]]
expression = "cp == 1 or seq_len % (2 * cp) == 0"
why = "each rank takes two chunks of the sequence"
"""
)


def test_a_knob_that_varies_on_request_leaves_the_job_as_it_is_without(load, tmp_path) -> None:
    plain, quiet = load('extends = "megatron"\n'), load(REQUESTED)
    assert quiet.space == dataclasses.replace(plain.space, facts=quiet.space.facts, settled={"cp": 1, "exchange": "p2p"})
    assert list(quiet.candidates()) == list(plain.candidates()) and quiet.fingerprint == plain.fingerprint
    assert not any("--cp" in launched(quiet, each) or "context" in launched(quiet, each) for each in quiet.candidates())
    asked = load_job(tmp_path / "job.toml", settings=["space.parameters.cp=[1, 2]"])
    assert {each["cp"] for each in asked.candidates()} == {1, 2} and asked.space.settled["exchange"] == "p2p"
    assert Problem.from_dict(json.loads(json.dumps(asked.to_dict()))).candidates().space.constraints == asked.space.constraints


def test_a_knob_that_no_runner_honours_is_left_out(tmp_path) -> None:
    (tmp_path / "space.toml").write_text('extends = "torch"\n[parameters.mine]\nvalues = [1, 2]\n')
    job = own_space.JOB.partition("[command]")[0].replace("SPACE", "./space.toml")
    (tmp_path / "job.toml").write_text(job)
    assert not any(each.extras for each in load_job(tmp_path / "job.toml").candidates())
    with pytest.raises(JobError, match="the runner `torch` does not honour `mine`"):
        load_job(tmp_path / "job.toml", settings=["space.parameters.mine=[1, 2]"])
